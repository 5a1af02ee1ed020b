package worker

import (
	"bytes"
	"io"
	"sync"
)

// maxLine is the longest line that is passed on in one piece.
const maxLine = 1 << 20

// lines passes a child's output on line by line, so that what several children
// write to one place never mixes within a line. A child that ends without a
// newline gets one.
type lines struct {
	mu     *sync.Mutex // taken for each line, shared by all who write to the same place
	to     io.Writer
	prefix []byte // before each line
	rest   []byte // the prefix and the line not ended yet
}

func newLines(mu *sync.Mutex, to io.Writer, prefix string) *lines {
	return &lines{mu: mu, to: to, prefix: []byte(prefix), rest: []byte(prefix)}
}

// Write implements [io.Writer]. It never fails: a child shall not be stopped or
// stuck because nobody wants to hear it any more.
func (l *lines) Write(data []byte) (int, error) {
	for part := data; len(part) > 0; {
		end := bytes.IndexByte(part, '\n')
		if end < 0 {
			l.rest = append(l.rest, part...)
			if len(l.rest) > maxLine {
				l.rest = append(l.rest, '\n')
				l.pass()
			}
			break
		}
		l.rest = append(l.rest, part[:end+1]...)
		l.pass()
		part = part[end+1:]
	}
	return len(data), nil
}

// ReadFrom implements [io.ReaderFrom], with a buffer smaller than io.Copy's:
// there are two for each child.
func (l *lines) ReadFrom(from io.Reader) (int64, error) {
	buffer := make([]byte, 2048)
	var read int64
	for {
		n, err := from.Read(buffer)
		read += int64(n)
		_, _ = l.Write(buffer[:n]) // never fails
		switch err {
		case nil:
		case io.EOF:
			return read, nil
		default:
			return read, err
		}
	}
}

// flush ends a line that the child did not end.
func (l *lines) flush() {
	if len(l.rest) > len(l.prefix) {
		l.rest = append(l.rest, '\n')
		l.pass()
	}
}

// pass writes the line and begins a new one.
func (l *lines) pass() {
	l.mu.Lock()
	_, _ = l.to.Write(l.rest) // nobody to tell: this is where the news would go
	l.mu.Unlock()
	l.rest = append(l.rest[:0], l.prefix...)
}
