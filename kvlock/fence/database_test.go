package fence_test

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"

	"tenure/kvlock/fence"
)

// A database is one that SQL guards, with the tables of a test in it.
type database struct {
	*sql.DB
	dialect fence.Dialect
	guard   *fence.SQL
}

// onEachDatabase runs f against SQLite and against PostgreSQL.
func onEachDatabase(t *testing.T, f func(t *testing.T, db *database)) {
	t.Helper()
	t.Run("SQLite", func(t *testing.T) { f(t, newSQLite(t)) })
	t.Run("PostgreSQL", func(t *testing.T) { f(t, newPostgreSQL(t)) })
}

func newSQLite(t testing.TB) *database {
	t.Helper()
	return open(t, fence.SQLite, "sqlite", sqliteURL(filepath.Join(t.TempDir(), "db")))
}

func sqliteURL(path string) string {
	return "file:" + path + "?_pragma=busy_timeout(10000)&_pragma=journal_mode(wal)&_pragma=synchronous(off)"
}

// newPostgreSQL returns a database whose tables are in a schema of the test's own.
func newPostgreSQL(t testing.TB) *database {
	t.Helper()
	address := os.Getenv("TENURE_TEST_POSTGRES")
	switch {
	case address == "" && os.Getenv("CI") == "true":
		t.Fatal("TENURE_TEST_POSTGRES is not set, want the URL of a PostgreSQL: .ci/postgres COMMAND sets it")
	case address == "":
		t.Skip("needs PostgreSQL: run .ci/postgres go test ./kvlock/fence")
	}
	admin, err := sql.Open("pgx", address)
	if err != nil {
		t.Fatal(err)
	}
	schema := fmt.Sprintf("test_%016x", rand.Uint64())
	if _, err := admin.ExecContext(t.Context(), "CREATE SCHEMA "+schema); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := admin.ExecContext(context.WithoutCancel(t.Context()), "DROP SCHEMA "+schema+" CASCADE"); err != nil {
			t.Errorf("drop schema: %v", err)
		}
		if err := admin.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	query := u.Query()
	query.Set("search_path", schema)
	u.RawQuery = query.Encode()
	return open(t, fence.PostgreSQL, "pgx", u.String())
}

// open returns a database with the table of marks and the table lines, which keeps
// what was written in the order in which it was.
func open(t testing.TB, dialect fence.Dialect, driver, address string) *database {
	t.Helper()
	db, err := sql.Open(driver, address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	guard, err := fence.NewSQL(db, dialect, "fence")
	if err != nil {
		t.Fatal(err)
	}
	if err := guard.CreateTable(t.Context()); err != nil {
		t.Fatal(err)
	}
	number := "INTEGER PRIMARY KEY AUTOINCREMENT"
	if dialect == fence.PostgreSQL {
		number = "BIGSERIAL PRIMARY KEY"
	}
	if _, err := db.ExecContext(t.Context(), "CREATE TABLE lines (number "+number+", token BIGINT, text TEXT)"); err != nil {
		t.Fatal(err)
	}
	return &database{db, dialect, guard}
}

// line returns a write for [fence.SQL.Do] that adds a line.
func line(ctx context.Context, token uint64, text string) func(tx *sql.Tx) error {
	return func(tx *sql.Tx) error {
		// Both dialects know these placeholders, SQLite as names.
		_, err := tx.ExecContext(ctx, "INSERT INTO lines (token, text) VALUES ($1, $2)", int64(token), text)
		return err
	}
}

// lines returns the tokens and the texts of the lines.
func (db *database) lines(t testing.TB) (tokens []uint64, texts []string) {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), "SELECT token, text FROM lines ORDER BY number")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var token int64
		var text string
		if err := rows.Scan(&token, &text); err != nil {
			t.Fatal(err)
		}
		tokens, texts = append(tokens, uint64(token)), append(texts, text)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return tokens, texts
}
