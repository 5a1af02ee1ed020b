package fence

import (
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// A Dialect is the SQL that a database speaks.
type Dialect string

// The dialects of [NewSQL]. SQLite has to be 3.24 or newer; any driver will do.
const (
	PostgreSQL Dialect = "PostgreSQL"
	SQLite     Dialect = "SQLite"
)

// identifier has no upper case, which PostgreSQL folds unless it is quoted.
var identifier = regexp.MustCompile(`^([a-z_][a-z0-9_]{0,62}\.)?[a-z_][a-z0-9_]{0,62}$`)

func (d Dialect) newSQL(db *sql.DB, table string) (*SQL, error) {
	if !identifier.MatchString(table) {
		return nil, &InputError{
			Input: "table", Have: fmt.Sprintf("%q", shorten(table)),
			Want: "letters a-z, digits and underscores, 1 to 63, after a schema and a dot if need be",
		}
	}
	s := &SQL{db: db}
	first, second := "$1", "$2"
	switch d {
	case PostgreSQL:
		// Its statements see what others have committed meanwhile. In a stricter one
		// a writer that has waited would fail instead.
		s.options = &sql.TxOptions{Isolation: sql.LevelReadCommitted}
	case SQLite:
		first, second = "?", "?"
	default:
		return nil, &InputError{Input: "dialect", Have: fmt.Sprintf("%q", shorten(string(d))), Want: "PostgreSQL or SQLite"}
	}
	// Quoted, so that a keyword is a name too.
	quoted := `"` + strings.ReplaceAll(table, ".", `"."`) + `"`
	s.create = "CREATE TABLE IF NOT EXISTS " + quoted + " (name TEXT NOT NULL PRIMARY KEY, token BIGINT NOT NULL)"
	s.read = "SELECT token FROM " + quoted + " WHERE name = " + first
	// One statement, so that of two which find no row one waits for the other. It
	// locks the row also if it does not change it.
	s.raise = "INSERT INTO " + quoted + " AS mark (name, token) VALUES (" + first + ", " + second + ")" +
		" ON CONFLICT (name) DO UPDATE SET token = excluded.token WHERE mark.token <= excluded.token"
	return s, nil
}

// passing reports whether a statement that failed with err may well succeed a moment
// later: SQLite is busy or a table locked, or in PostgreSQL another has just made the
// same table. Drivers agree on no type, but on these methods or on SQLite's own text.
func passing(err error) bool {
	if e, ok := errors.AsType[interface {
		error
		Code() int
	}](err); ok {
		code := e.Code() & 0xff
		return code == 5 || code == 6 // SQLITE_BUSY, SQLITE_LOCKED
	}
	if e, ok := errors.AsType[interface {
		error
		SQLState() string
	}](err); ok {
		switch e.SQLState() {
		case "23505", "42P07", "42710": // unique_violation, duplicate_table, duplicate_object
			return true
		}
		return false
	}
	return strings.Contains(err.Error(), "database is locked") || strings.Contains(err.Error(), "database table is locked")
}
