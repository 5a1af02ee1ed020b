package fence_test

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"

	"tenure/kvlock/fence"
)

func ExampleGuard() {
	var guard fence.Guard
	write := func(token uint64, text string) {
		err := guard.Do(context.Background(), "report", token, func() error {
			fmt.Println(text)
			return nil
		})
		if err != nil {
			fmt.Println(err)
		}
	}
	write(33, "by the first holder")
	write(34, "by the second holder")
	write(33, "by the first one, which was paused")
	// Output:
	// by the first holder
	// by the second holder
	// fence: "report": token: have 33, want at least 34
}

func ExampleSQL() {
	ctx := context.Background()
	db, err := sql.Open("sqlite", "file:accounts?mode=memory&cache=shared&_pragma=busy_timeout(5000)")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(ctx, "CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance INTEGER)"); err != nil {
		log.Fatal(err)
	}

	guard, err := fence.NewSQL(db, fence.SQLite, "fence")
	if err != nil {
		log.Fatal(err)
	}
	if err := guard.CreateTable(ctx); err != nil {
		log.Fatal(err)
	}
	write := func(token uint64, balance int) error {
		return guard.Do(ctx, "accounts/7", token, func(tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "INSERT OR REPLACE INTO accounts VALUES (7, ?)", balance)
			return err
		})
	}
	fmt.Println(write(33, 100))                     // by the first holder
	fmt.Println(guard.Raise(ctx, "accounts/7", 34)) // the second one begins
	fmt.Println(write(33, 90))                      // by the first one, which was paused
	// Output:
	// <nil>
	// <nil>
	// fence: "accounts/7": token: have 33, want at least 34
}

func ExampleHandler() {
	// The server.
	var guard fence.Guard
	srv := httptest.NewServer(&fence.Handler{
		Guard: &guard,
		Next: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			hold, _ := fence.FromContext(r.Context())
			fmt.Printf("%s under %d: %s\n", hold.Resource, hold.Token, body)
		}),
	})
	defer srv.Close()

	// The client. The context would be that of a lock, and the hold its name and token.
	client := http.Client{Transport: new(fence.Transport)}
	write := func(token uint64, text string) error {
		ctx := fence.NewContext(context.Background(), fence.Hold{Resource: "reports/nightly", Token: token})
		r, err := http.NewRequestWithContext(ctx, http.MethodPut, srv.URL, strings.NewReader(text))
		if err != nil {
			return err
		}
		resp, err := client.Do(r)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		return fence.CheckResponse(resp)
	}
	fmt.Println(write(33, "by the first holder"))
	fmt.Println(write(34, "by the second holder"))
	fmt.Println(write(33, "by the first one, which was paused"))
	// Output:
	// reports/nightly under 33: by the first holder
	// <nil>
	// reports/nightly under 34: by the second holder
	// <nil>
	// fence: "reports/nightly": token: have 33, want at least 34
}
