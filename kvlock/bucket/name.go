package bucket

import (
	"fmt"
	"strings"
)

// MaxName is the largest length of a name in bytes.
const MaxName = 200

const hexDigits = "0123456789ABCDEF"

// EncodeName returns name as one token of a key. Letters, digits, '-', '_' and
// '/' stand for themselves, every other byte is written as '=' and two
// upper-case hexadecimal digits, so different names have different tokens.
// A name has 1 to [MaxName] bytes; any other length is a [*NameError].
func EncodeName(name string) (string, error) {
	if name == "" || len(name) > MaxName {
		return "", &NameError{
			Name: name[:min(len(name), 32)],
			Have: fmt.Sprintf("%d bytes", len(name)),
			Want: fmt.Sprintf("1 to %d bytes", MaxName),
		}
	}
	var b strings.Builder
	for i := range len(name) {
		if c := name[i]; plain(c) {
			b.WriteByte(c)
		} else {
			b.WriteByte('=')
			b.WriteByte(hexDigits[c>>4])
			b.WriteByte(hexDigits[c&15])
		}
	}
	return b.String(), nil
}

// DecodeName is the inverse of [EncodeName]. It accepts exactly what EncodeName
// returns; anything else is a [*NameError].
func DecodeName(token string) (string, error) {
	var b strings.Builder
	for i := 0; i < len(token); i++ {
		c := token[i]
		if plain(c) {
			b.WriteByte(c)
			continue
		}
		if c == '=' && i+2 < len(token) {
			hi, lo := strings.IndexByte(hexDigits, token[i+1]), strings.IndexByte(hexDigits, token[i+2])
			if hi >= 0 && lo >= 0 && !plain(byte(hi<<4|lo)) {
				b.WriteByte(byte(hi<<4 | lo))
				i += 2
				continue
			}
		}
		return "", &NameError{
			Name: token[:min(len(token), 3*MaxName)],
			Have: fmt.Sprintf("%q at byte %d", c, i),
			Want: "letters, digits, '-', '_', '/' and =XX",
		}
	}
	if b.Len() == 0 || b.Len() > MaxName {
		return "", &NameError{
			Name: b.String()[:min(b.Len(), 32)],
			Have: fmt.Sprintf("%d bytes", b.Len()),
			Want: fmt.Sprintf("1 to %d bytes", MaxName),
		}
	}
	return b.String(), nil
}

func plain(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' ||
		c == '-' || c == '_' || c == '/'
}
