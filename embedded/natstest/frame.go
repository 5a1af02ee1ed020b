package natstest

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
)

// A frame is one operation of the NATS client protocol, either way.
type frame struct {
	raw []byte // the whole operation as sent

	verb    string // PUB, HPUB, MSG, HMSG, PONG, ...
	subject string // of the four verbs that carry a message, as are the fields below
	reply   string
	header  []byte
	payload []byte
}

// A splitter cuts a stream of bytes into frames.
type splitter struct {
	rest []byte // the beginning of a frame that is not complete
}

// add takes the next bytes and returns the frames that are complete now.
func (s *splitter) add(p []byte) ([]frame, error) {
	s.rest = append(s.rest, p...)
	var frames []frame
	for {
		f, err := parseFrame(s.rest)
		if err != nil {
			return frames, err
		}
		if f.raw == nil {
			return frames, nil
		}
		frames = append(frames, f)
		s.rest = s.rest[len(f.raw):]
		if len(s.rest) == 0 {
			s.rest = nil // frames keep the old array
		}
	}
}

// parseFrame returns the frame at the beginning of b, with raw nil if it is not
// complete.
func parseFrame(b []byte) (frame, error) {
	line, _, ok := bytes.Cut(b, []byte("\r\n"))
	if !ok {
		return frame{}, nil
	}
	head := len(line) + 2
	words := strings.Fields(string(line))
	if len(words) == 0 {
		return frame{raw: b[:head:head]}, nil
	}
	f := frame{verb: words[0]}
	args := words[1:]

	// PUB subject [reply] size             HPUB subject [reply] header total
	// MSG subject sid [reply] size         HMSG subject sid [reply] header total
	lead, sizes := 1, 1
	switch f.verb {
	case "PUB":
	case "HPUB":
		sizes = 2
	case "MSG":
		lead = 2
	case "HMSG":
		lead, sizes = 2, 2
	default:
		f.raw = b[:head:head]
		return f, nil
	}
	if n := len(args) - lead - sizes; n < 0 || n > 1 {
		return frame{}, fmt.Errorf("natstest: bad frame %q", line)
	}
	f.subject = args[0]
	if len(args) == lead+sizes+1 {
		f.reply = args[lead]
	}
	total, err := strconv.Atoi(args[len(args)-1])
	if err != nil {
		return frame{}, fmt.Errorf("natstest: bad frame %q", line)
	}
	header := 0
	if sizes == 2 {
		if header, err = strconv.Atoi(args[len(args)-2]); err != nil || header > total {
			return frame{}, fmt.Errorf("natstest: bad frame %q", line)
		}
	}
	end := head + total + 2
	if len(b) < end {
		return frame{}, nil
	}
	f.raw = b[:end:end]
	f.header = b[head : head+header]
	f.payload = b[head+header : head+total]
	return f, nil
}
