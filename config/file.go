package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// maxFile bounds the file, which is read as a whole.
const maxFile = 1 << 20

// An entry is the value of one key of the file.
type entry struct {
	value  string // as written, a list joined by commas
	origin string
}

// readFile reads the settings that stand in the YAML file.
func readFile(path string) (map[string]entry, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	defer func() { _ = file.Close() }() // only read from
	data, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if len(data) > maxFile {
		return nil, fmt.Errorf("%w: %s: have more than %d bytes, want at most that", ErrInvalid, path, maxFile)
	}
	return parseFile(path, data)
}

// parseFile reads the settings out of the text of the file: one mapping from
// names to plain values or lists of them.
func parseFile(path string, data []byte) (map[string]entry, error) {
	file, err := parser.ParseBytes(data, 0)
	if err != nil {
		return nil, syntaxError(path, err)
	}
	if len(file.Docs) > 1 {
		return nil, fmt.Errorf("%w: %s: have %d YAML documents, want one", ErrInvalid, path, len(file.Docs))
	}
	var known []string
	for _, s := range new(Config).settings() {
		known = append(known, s.name)
	}
	entries := make(map[string]entry)
	for _, doc := range file.Docs {
		if doc.Body == nil {
			continue
		}
		pairs, ok := doc.Body.(ast.MapNode)
		if !ok {
			return nil, fmt.Errorf("%w: %s:%d: have a YAML %s, want lines of the form name: value",
				ErrInvalid, path, line(doc.Body), strings.ToLower(doc.Body.Type().String()))
		}
		for pair := pairs.MapRange(); pair.Next(); {
			key := pair.Key().GetToken().Value
			if !slices.Contains(known, key) {
				return nil, &UnknownKeyError{File: path, Line: line(pair.Key()), Key: key, Near: nearest(key, known)}
			}
			origin := fmt.Sprintf("%s:%d: %s", path, line(pair.Key()), key)
			value, have := scalar(pair.Value())
			if list, ok := pair.Value().(*ast.SequenceNode); ok {
				value, have = join(list)
			}
			if have != "" {
				return nil, &SettingError{Setting: key, Origin: origin, Have: have, Want: "a plain value, or no such line for the default"}
			}
			entries[key] = entry{value: value, origin: origin}
		}
	}
	return entries, nil
}

// scalar returns the text of a plain value, or what stands there instead.
func scalar(node ast.Node) (value, have string) {
	switch node := node.(type) {
	case *ast.StringNode:
		value = node.Value
	case *ast.LiteralNode:
		value = node.Value.Value
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		value = node.GetToken().Value // as written: 010 stays 010
	case nil, *ast.NullNode:
		return "", "nothing"
	default:
		return "", "a YAML " + strings.ToLower(node.Type().String())
	}
	if value == "" {
		return "", `""`
	}
	return value, ""
}

// join returns a list of plain values as the flags take it.
func join(list *ast.SequenceNode) (value, have string) {
	values := make([]string, len(list.Values))
	for i, node := range list.Values {
		if values[i], have = scalar(node); have != "" {
			return "", have + " in a list"
		}
		if strings.Contains(values[i], ",") {
			return "", "a comma within a list"
		}
	}
	switch len(values) {
	case 0:
		return "", "an empty list"
	case 1:
		return values[0] + ",", "" // else a list of the name "5" would be the number 5
	}
	return strings.Join(values, ","), ""
}

func line(node ast.Node) int { return node.GetToken().Position.Line }

// syntaxError returns the parser's error without the piece of the file that it
// quotes, which may hold a secret.
func syntaxError(path string, err error) error {
	if syntax, ok := errors.AsType[yaml.Error](err); ok && syntax.GetToken() != nil {
		return fmt.Errorf("%w: %s:%d: %s", ErrInvalid, path, syntax.GetToken().Position.Line, syntax.GetMessage())
	}
	return fmt.Errorf("%w: %s: no YAML", ErrInvalid, path)
}

// nearest returns the name that key is most likely a slip of, empty if none is
// near.
func nearest(key string, names []string) string {
	best, least := "", 3 // more than two slips are another word
	for _, name := range names {
		if d := distance(normal(key), normal(name)); d < least && d < len(name)-1 {
			best, least = name, d
		}
	}
	return best
}

// normal takes away what is no slip: drain_timeout and drainTimeout.
func normal(name string) string {
	return strings.NewReplacer("-", "", "_", "").Replace(strings.ToLower(name))
}

// distance is the number of bytes to insert, delete or replace to turn a into b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}
