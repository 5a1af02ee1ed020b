package worker

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// A position is the checkpoint of a partition of a stream: how far it was
// handled, and where the acknowledgements since then are to be found.
type position struct {
	Stream string `json:"stream"`

	// Made is when the stream was made, in Unix nanoseconds. The sequences of a
	// stream made anew begin again, so a position in the old one means nothing.
	Made int64 `json:"made"`

	// Floor is the sequence up to which everything was handled.
	Floor uint64 `json:"floor"`

	// Consumer is that of the hold which saved this. It may be further on.
	Consumer string `json:"consumer,omitempty"`

	// Gone are consumers of earlier holds that are still to be deleted.
	Gone []string `json:"gone,omitempty"`
}

// readPosition reads a checkpoint. Nothing is the zero position.
func readPosition(checkpoint []byte) (position, error) {
	if len(checkpoint) == 0 {
		return position{}, nil
	}
	var p position
	if err := json.Unmarshal(checkpoint, &p); err != nil || p.Stream == "" {
		have := checkpoint[:min(len(checkpoint), 60)]
		return position{}, fmt.Errorf("worker: %w: have %q, want what a stream task saved", ErrCheckpoint, have)
	}
	return p, nil
}

func (p position) bytes() []byte {
	data, err := json.Marshal(p)
	if err != nil {
		panic("worker: position: " + err.Error()) // strings and numbers only
	}
	return data
}

// made is how the time a stream was made stands in a position.
func made(created time.Time) int64 { return created.UnixNano() }

// consumerMark begins the name of every consumer that this package makes.
const consumerMark = "tenure_"

// consumerPrefix is what the consumers of all holds of a partition begin with.
// Group and partition are there for people, cut and cleaned of what a consumer's
// name may not contain; the hash tells apart what then looks the same.
func consumerPrefix(group, partition string) string {
	sum := sha256.Sum256([]byte(group + "\x00" + partition))
	return consumerMark + plain(group) + "_" + plain(partition) + "_" + hex.EncodeToString(sum[:6]) + "_"
}

// consumerName is the name of the n-th consumer of the hold with token.
func consumerName(prefix string, token uint64, n int) string {
	return prefix + strconv.FormatUint(token, 10) + "-" + strconv.Itoa(n)
}

// parseConsumer is the inverse of consumerName. ok is false for the consumer of
// another partition.
func parseConsumer(name, prefix string) (token uint64, n int, ok bool) {
	rest, mine := strings.CutPrefix(name, prefix)
	first, second, _ := strings.Cut(rest, "-")
	token, err := strconv.ParseUint(first, 10, 64)
	n, nErr := strconv.Atoi(second)
	return token, n, mine && err == nil && nErr == nil
}

// plain keeps letters, digits and dashes of at most 40 bytes of name.
func plain(name string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-':
			return r
		}
		return '-'
	}, name[:min(len(name), 40)])
}
