package fence_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"tenure/kvlock/fence"
)

func wantMark(t testing.TB, db *database, resource string, want uint64) {
	t.Helper()
	if got, err := db.guard.Mark(t.Context(), resource); err != nil || got != want {
		t.Errorf("Mark = %d, %v, want %d", got, err, want)
	}
}

func wantTexts(t testing.TB, db *database, want ...string) {
	t.Helper()
	if _, got := db.lines(t); !slices.Equal(got, want) {
		t.Errorf("lines = %q, want %q", got, want)
	}
}

// K54, N60, F4
func TestStaleTokenIsRefusedBySQL(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, db *database) {
		ctx := t.Context()
		for _, token := range []uint64{10, 11, 11} {
			if err := db.guard.Do(ctx, "r", token, line(ctx, token, "in time")); err != nil {
				t.Fatalf("Do(%d) = %v, want nil", token, err)
			}
		}
		err := db.guard.Do(ctx, "r", 10, func(*sql.Tx) error { t.Error("stale write ran"); return nil })
		want := fence.StaleError{Resource: "r", Have: 10, Want: 11}
		if got, ok := errors.AsType[*fence.StaleError](err); !ok || *got != want || !errors.Is(err, fence.ErrStale) {
			t.Errorf("Do(10) = %v, want %v", err, &want)
		}
		if err := db.guard.Do(ctx, "other", 10, line(ctx, 10, "other")); err != nil {
			t.Errorf("Do of another resource = %v, want nil", err)
		}
		wantTexts(t, db, "in time", "in time", "in time", "other")
		wantMark(t, db, "r", 11)
		wantMark(t, db, "never", 0)
	})
}

// K51
func TestRaisedMarkRefusesOldTokenBySQL(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, db *database) {
		ctx := t.Context()
		if err := db.guard.Raise(ctx, "r", 12); err != nil {
			t.Fatalf("Raise of a resource without a mark = %v, want nil", err)
		}
		if err := db.guard.Raise(ctx, "r", 12); err != nil {
			t.Errorf("Raise again = %v, want nil", err)
		}
		if err := db.guard.Raise(ctx, "r", 11); !errors.Is(err, fence.ErrStale) {
			t.Errorf("Raise(11) = %v, want %v", err, fence.ErrStale)
		}
		if err := db.guard.Do(ctx, "r", 11, line(ctx, 11, "late")); !errors.Is(err, fence.ErrStale) {
			t.Errorf("Do(11) = %v, want %v", err, fence.ErrStale)
		}
		wantTexts(t, db)
		wantMark(t, db, "r", 12)
	})
}

// H22, F4: deleting what is guarded does not forget the mark.
func TestDeletedRowsLeaveTheMarkOfSQL(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, db *database) {
		ctx := t.Context()
		if err := db.guard.Do(ctx, "r", 10, line(ctx, 10, "first")); err != nil {
			t.Fatal(err)
		}
		if err := db.guard.Do(ctx, "r", 11, func(tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "DELETE FROM lines")
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if err := db.guard.Do(ctx, "r", 10, line(ctx, 10, "late")); !errors.Is(err, fence.ErrStale) {
			t.Errorf("Do(10) = %v, want %v", err, fence.ErrStale)
		}
		wantTexts(t, db)
	})
}

func TestFailedWriteIsRolledBackWithItsMark(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, db *database) {
		ctx := t.Context()
		if err := db.guard.Raise(ctx, "r", 10); err != nil {
			t.Fatal(err)
		}
		failed := errors.New("failed")
		calls := 0
		err := db.guard.Do(ctx, "r", 11, func(tx *sql.Tx) error {
			calls++
			return errors.Join(line(ctx, 11, "half")(tx), failed)
		})
		if !errors.Is(err, failed) || calls != 1 {
			t.Errorf("Do = %v after %d calls, want %v after 1", err, calls, failed)
		}
		func() {
			defer func() {
				if r := recover(); r != "oops" {
					t.Errorf("recovered %v, want oops", r)
				}
			}()
			_ = db.guard.Do(ctx, "r", 11, func(tx *sql.Tx) error {
				if err := line(ctx, 11, "half")(tx); err != nil {
					t.Error(err)
				}
				panic("oops")
			})
		}()
		wantTexts(t, db)
		wantMark(t, db, "r", 10)
		if err := db.guard.Do(ctx, "r", 11, line(ctx, 11, "whole")); err != nil {
			t.Errorf("Do = %v, want nil", err)
		}
		wantTexts(t, db, "whole")
	})
}

// K53, S10
func TestBadInputOfSQLStoresNothing(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, db *database) {
		tests := []struct {
			resource string
			token    uint64
			want     error
		}{
			{"r", 0, fence.ErrStale},
			{"r", math.MaxInt64 + 1, fence.ErrInput},
			{"", 1, fence.ErrInput},
			{strings.Repeat("x", 501), 1, fence.ErrInput},
			{"a\x00b", 1, fence.ErrInput},
			{"\xff", 1, fence.ErrInput},
		}
		for _, tt := range tests {
			err := db.guard.Do(t.Context(), tt.resource, tt.token, func(*sql.Tx) error { t.Error("write ran"); return nil })
			if !errors.Is(err, tt.want) {
				t.Errorf("Do(%q, %d) = %v, want %v", tt.resource, tt.token, err, tt.want)
			}
		}
		var n int
		if err := db.QueryRowContext(t.Context(), "SELECT count(*) FROM fence").Scan(&n); err != nil || n != 0 {
			t.Errorf("marks = %d, %v, want 0", n, err)
		}
		for _, resource := range []string{strings.Repeat("x", 500), "ünï 'code' \"; -- #1"} {
			if err := db.guard.Raise(t.Context(), resource, math.MaxInt64); err != nil {
				t.Errorf("Raise(%q) = %v, want nil", resource, err)
			}
			wantMark(t, db, resource, math.MaxInt64)
		}
	})
}

func TestBadTableOrDialectIsAnInputError(t *testing.T) {
	db := newSQLite(t)
	for _, table := range []string{
		"", "1a", "Fence", "a b", `a"b`, "a;drop table lines", "a.b.c", ".a", "a.", "ä", strings.Repeat("x", 64), "a\n",
	} {
		if _, err := fence.NewSQL(db.DB, fence.SQLite, table); !errors.Is(err, fence.ErrInput) {
			t.Errorf("NewSQL(%q) = %v, want %v", table, err, fence.ErrInput)
		}
	}
	if _, err := fence.NewSQL(db.DB, "MySQL", "fence"); !errors.Is(err, fence.ErrInput) {
		t.Errorf("NewSQL = %v, want %v", err, fence.ErrInput)
	}
	if _, err := fence.NewSQL(nil, fence.SQLite, "fence"); !errors.Is(err, fence.ErrInput) {
		t.Errorf("NewSQL = %v, want %v", err, fence.ErrInput)
	}
	for _, table := range []string{"order", "main.select", strings.Repeat("x", 63)} { // keywords are names too
		guard, err := fence.NewSQL(db.DB, fence.SQLite, table)
		if err != nil {
			t.Errorf("NewSQL(%q) = %v, want nil", table, err)
			continue
		}
		if err := errors.Join(guard.CreateTable(t.Context()), guard.Raise(t.Context(), "r", 1)); err != nil {
			t.Errorf("Raise in table %q = %v, want nil", table, err)
		}
	}
}

func TestTableMayBeCreatedByManyAtOnce(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, db *database) {
		for i := range 10 {
			guard, err := fence.NewSQL(db.DB, db.dialect, fmt.Sprintf("another%d", i))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := guard.Mark(t.Context(), "r"); err == nil {
				t.Error("Mark without a table = nil, want an error")
			}
			var all sync.WaitGroup
			for range 16 {
				all.Go(func() {
					if err := guard.CreateTable(t.Context()); err != nil {
						t.Errorf("CreateTable = %v, want nil", err)
					}
				})
			}
			all.Wait()
			if err := guard.Raise(t.Context(), "r", 1); err != nil {
				t.Errorf("Raise = %v, want nil", err)
			}
		}
	})
}

// N60: in the order in which they were accepted, tokens never fall. The first marks
// are made by many at once.
func TestAcceptedTokensNeverFallInSQL(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, db *database) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var all sync.WaitGroup
		for range 32 {
			all.Go(func() {
				for i := range 8 {
					token := uint64(1 + i + rand.IntN(8)) // rising, each its own way
					err := db.guard.Do(ctx, "r", token, line(ctx, token, ""))
					if err != nil && !errors.Is(err, fence.ErrStale) {
						t.Errorf("Do = %v, want nil or %v", err, fence.ErrStale)
					}
				}
			})
		}
		all.Wait()
		tokens, _ := db.lines(t)
		if !slices.IsSorted(tokens) {
			t.Errorf("accepted tokens = %d, want none lower than the one before", tokens)
		}
		if len(tokens) == 0 || len(tokens) == 32*8 {
			t.Errorf("accepted = %d of %d, want some refused and some not", len(tokens), 32*8)
		}
		if len(tokens) > 0 {
			wantMark(t, db, "r", tokens[len(tokens)-1])
		}
	})
}

// K51: what was accepted is stored before Raise returns, and nothing after it is.
func TestNoOldWriteIsAcceptedAfterRaiseReturned(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, db *database) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var writers sync.WaitGroup
		begun := make(chan struct{}, 1)
		for range 4 {
			writers.Go(func() {
				for {
					switch err := db.guard.Do(ctx, "r", 1, line(ctx, 1, "")); {
					case errors.Is(err, fence.ErrStale):
						return
					case err != nil:
						t.Errorf("Do = %v, want nil or %v", err, fence.ErrStale)
						return
					}
					select {
					case begun <- struct{}{}:
					default:
					}
				}
			})
		}
		<-begun
		if err := db.guard.Raise(ctx, "r", 2); err != nil {
			t.Errorf("Raise = %v, want nil", err)
			cancel()
		}
		before, _ := db.lines(t)
		writers.Wait()
		if after, _ := db.lines(t); len(after) != len(before) || len(after) == 0 {
			t.Errorf("lines = %d when Raise returned and %d at the end, want the same", len(before), len(after))
		}
	})
}

// A holder that is paused inside its transaction holds up the next one, which gets
// to know by its deadline; its write was before the mark was raised.
func TestRaiseWaitsForAWriteUnderWay(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, db *database) {
		ctx := t.Context()
		err := db.guard.Do(ctx, "r", 1, func(tx *sql.Tx) error {
			short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
			defer cancel()
			if err := db.guard.Raise(short, "r", 2); err == nil || errors.Is(err, fence.ErrStale) {
				t.Errorf("Raise during a write = %v, want an error because time is up", err)
			}
			if db.dialect == fence.PostgreSQL { // SQLite has one writer
				if err := db.guard.Raise(ctx, "other", 1); err != nil {
					t.Errorf("Raise of another resource = %v, want nil", err)
				}
			}
			return line(ctx, 1, "slow")(tx)
		})
		if err != nil {
			t.Errorf("Do = %v, want nil", err)
		}
		if err := db.guard.Raise(ctx, "r", 2); err != nil {
			t.Errorf("Raise after the write = %v, want nil", err)
		}
		wantTexts(t, db, "slow")
	})
}

// Another writer of the same file, with a driver that does not wait by itself.
func TestBusySQLiteIsTriedAgainAndReportedInTheEnd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	db := open(t, fence.SQLite, "sqlite", "file:"+path+"?_pragma=busy_timeout(0)")
	other, err := sql.Open("sqlite", sqliteURL(path))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	ctx := t.Context()
	block := func() *sql.Tx {
		tx, err := other.BeginTx(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := line(ctx, 0, "not guarded")(tx); err != nil {
			t.Fatal(err)
		}
		return tx
	}
	tx := block()
	if err := db.guard.Do(ctx, "r", 1, func(*sql.Tx) error { t.Error("write ran"); return nil }); err == nil || errors.Is(err, fence.ErrStale) {
		t.Errorf("Do while the database is busy = %v, want the error of the driver", err)
	}
	done := make(chan error, 1)
	go func() { done <- db.guard.Do(ctx, "r", 1, line(ctx, 1, "later")) }()
	time.Sleep(20 * time.Millisecond)
	if err := tx.Commit(); err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Errorf("Do = %v, want nil", err)
	}
	wantTexts(t, db, "not guarded", "later")
}

// A write that reads first still commits: the transaction has the write lock from
// its beginning, so nobody can write after that read.
func TestWriteThatReadsFirstCommits(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, db *database) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				for range 5 {
					err := db.guard.Do(ctx, "r", 1, func(tx *sql.Tx) error {
						var n uint64
						if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM lines").Scan(&n); err != nil {
							return err
						}
						return line(ctx, n, "")(tx)
					})
					if err != nil {
						t.Errorf("Do = %v, want nil", err)
					}
				}
			})
		}
		all.Wait()
		tokens, _ := db.lines(t)
		for i, n := range tokens {
			if n != uint64(i) {
				t.Fatalf("counts = %d, want 0 to 39 in order", tokens)
			}
		}
		if len(tokens) != 40 {
			t.Errorf("lines = %d, want 40", len(tokens))
		}
	})
}

// The form for those who keep the token in a column, as the package documentation
// has it.
func TestTokenInAColumnRefusesStaleWrites(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, db *database) {
		ctx := t.Context()
		if _, err := db.ExecContext(ctx, "CREATE TABLE accounts (id BIGINT PRIMARY KEY, balance BIGINT, fence BIGINT)"); err != nil {
			t.Fatal(err)
		}
		if _, err := db.ExecContext(ctx, "INSERT INTO accounts VALUES (7, 100, 0)"); err != nil {
			t.Fatal(err)
		}
		write := func(token, balance int64) int64 {
			res, err := db.ExecContext(ctx, "UPDATE accounts SET balance = $1, fence = $2 WHERE id = $3 AND fence <= $2", balance, token, 7)
			if err != nil {
				t.Fatal(err)
			}
			n, err := res.RowsAffected()
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
		for _, tt := range []struct{ token, balance, want int64 }{{10, 90, 1}, {11, 80, 1}, {10, 70, 0}, {11, 60, 1}} {
			if got := write(tt.token, tt.balance); got != tt.want {
				t.Errorf("rows changed under %d = %d, want %d", tt.token, got, tt.want)
			}
		}
	})
}
