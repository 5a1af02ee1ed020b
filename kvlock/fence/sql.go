package fence

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// SQL keeps the marks of resources in a table of a database, beside the data that
// they guard. Its methods may be called concurrently, and by any number of
// processes. Make it with [NewSQL].
type SQL struct {
	db      *sql.DB
	options *sql.TxOptions
	create  string
	raise   string
	read    string
}

// NewSQL guards what is in db, with the marks in the named table: lower-case
// letters, digits and underscores, at most 63 bytes, after the name of a schema and a
// dot if need be. It asks the database nothing; [SQL.CreateTable] makes the table.
//
// The error is an [*InputError].
func NewSQL(db *sql.DB, dialect Dialect, table string) (*SQL, error) {
	if db == nil {
		return nil, &InputError{Input: "database", Have: "nil", Want: "a *sql.DB"}
	}
	return dialect.newSQL(db, table)
}

// CreateTable makes the table of the marks if it is not there. Any number of
// processes may do so at once. It needs the right to make tables; whoever has none
// has the statement from the package documentation run by somebody else.
//
// CreateTable blocks until the database has answered or ctx is done, and tries again
// while that is busy, as [SQL.Do] does. The error is one of the database or of ctx.
func (s *SQL) CreateTable(ctx context.Context) error {
	for try := 1; ; try++ {
		_, err := s.db.ExecContext(ctx, s.create)
		switch {
		case err == nil:
			return nil
		case try == tries || !passing(err):
			return fmt.Errorf("fence: create table of marks: %w", err)
		}
		if err := pause(ctx, try); err != nil {
			return fmt.Errorf("fence: create table of marks: %w", err)
		}
	}
}

// Do raises the mark of the resource to token and calls write, all in one
// transaction, which it commits if write returns nil and rolls back otherwise. Write
// is called once at most. It must use tx alone for what it guards, must not end it,
// and must not call Do of the same resource.
//
// From the moment the mark is raised until the end of the transaction every other Do
// and Raise of the resource waits, with SQLite every writer of the database. So Do
// blocks while another is under way, until ctx is done; give ctx a deadline.
//
// If the mark is higher than token, write is not called and the error is a
// [*StaleError]. A resource or a token that cannot be used is an [*InputError] or,
// for 0, a [*StaleError], and the database is not asked. A mark that cannot be raised
// because the database is busy is tried again, 20 times within about a second, on
// top of what the driver does by itself. Every other error of the database, write or
// the commit is returned as it is, deadlocks and serialization failures included: to
// call Do again with the same token is right, unless what write does must not be
// done twice and the error is one of the commit, which leaves open whether it
// happened.
//
// After a rollback the mark is what it was before. [SQL.Raise] makes it stay.
func (s *SQL) Do(ctx context.Context, resource string, token uint64, write func(tx *sql.Tx) error) error {
	if err := check(resource, token); err != nil {
		return err
	}
	tx, err := s.begin(ctx, resource, token)
	if err != nil {
		return err
	}
	// It does nothing after a commit; a rollback that fails is one by the database.
	defer func() { _ = tx.Rollback() }()
	if err := write(tx); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("fence: commit write of %q: %w", resource, err)
	}
	return nil
}

// Raise raises the mark to token. From then on no lower token is accepted: call it
// when a hold begins, before its first write. It blocks and fails as [SQL.Do] does.
func (s *SQL) Raise(ctx context.Context, resource string, token uint64) error {
	return s.Do(ctx, resource, token, func(*sql.Tx) error { return nil })
}

// Mark returns the highest token that was seen for the resource, 0 if none was. It
// blocks until the database has answered or ctx is done. The error is an [*InputError] if
// the resource cannot be used, or one of the database.
func (s *SQL) Mark(ctx context.Context, resource string) (uint64, error) {
	if err := check(resource, 1); err != nil {
		return 0, err
	}
	return s.mark(ctx, s.db, resource)
}

// begin returns a transaction in which the mark is raised, so that it has the lock on
// the row of the mark, or with SQLite on the database.
func (s *SQL) begin(ctx context.Context, resource string, token uint64) (*sql.Tx, error) {
	for try := 1; ; try++ {
		tx, err := s.tryBegin(ctx, resource, token)
		if err == nil || try == tries || !passing(err) {
			return tx, err
		}
		if err := pause(ctx, try); err != nil {
			return nil, fmt.Errorf("fence: raise mark of %q: %w", resource, err)
		}
	}
}

func (s *SQL) tryBegin(ctx context.Context, resource string, token uint64) (_ *sql.Tx, err error) {
	tx, err := s.db.BeginTx(ctx, s.options)
	if err != nil {
		return nil, fmt.Errorf("fence: begin write of %q: %w", resource, err)
	}
	defer func() {
		if err != nil {
			_ = tx.Rollback() // the error that led here says more
		}
	}()
	// The first statement writes. A transaction of SQLite that read first could not
	// get the write lock once another has written after its read; this one waits for
	// it, as one begun with BEGIN IMMEDIATE.
	res, err := tx.ExecContext(ctx, s.raise, resource, int64(token))
	if err != nil {
		return nil, fmt.Errorf("fence: raise mark of %q: %w", resource, err)
	}
	switch n, err := res.RowsAffected(); {
	case err != nil:
		return nil, fmt.Errorf("fence: raise mark of %q: %w", resource, err)
	case n == 1:
		return tx, nil
	}
	mark, err := s.mark(ctx, tx, resource)
	if err != nil {
		return nil, err
	}
	if err := stale(resource, token, mark); err != nil {
		return nil, err
	}
	return nil, fmt.Errorf("fence: raise mark of %q: no row is changed though the mark is %d", resource, mark)
}

func (s *SQL) mark(ctx context.Context, q interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}, resource string,
) (uint64, error) {
	var mark int64
	err := q.QueryRowContext(ctx, s.read, resource).Scan(&mark)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return 0, fmt.Errorf("fence: read mark of %q: %w", resource, err)
	}
	return uint64(mark), nil
}

// tries is how often a statement is tried that fails for the moment.
const tries = 20

// pause waits 1 to 64 ms, longer with each try, or until ctx is done.
func pause(ctx context.Context, try int) error {
	timer := time.NewTimer(time.Millisecond + rand.N(time.Millisecond<<min(try, 6)))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// check returns an error for a resource or a token that no guard of SQL takes.
func check(resource string, token uint64) error {
	if err := checkResource(resource); err != nil {
		return err
	}
	if token > math.MaxInt64 {
		return &InputError{Input: "token", Have: fmt.Sprint(token), Want: fmt.Sprintf("at most %d", math.MaxInt64)}
	}
	return stale(resource, token, 0)
}
