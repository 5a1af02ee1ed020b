package bucket

import (
	"slices"
	"strings"
)

// reserved are the first tokens of the keys of locks and claims.
var reserved = []string{"lock", "wait", "slot", "read", "member", "claim", "check", "plan", "group"}

// DataKey returns the key of a user's own data of the given name, which is encoded
// by [EncodeName].
func DataKey(name string) (string, error) {
	enc, err := EncodeName(name)
	if err != nil {
		return "", err
	}
	return "data." + enc, nil
}

// OwnKey returns the key of a subject that users may publish to: one of the
// bucket's stream, without wildcards, and none of those that locks and claims use.
// Any other is a [*NameError].
func (b *Bucket) OwnKey(subject string) (string, error) {
	key, own := strings.CutPrefix(subject, b.prefix)
	first, _, _ := strings.Cut(key, ".")
	bad := slices.Contains(strings.Split(key, "."), "") || strings.ContainsAny(key, " \t\r\n*>")
	if !own || bad || slices.Contains(reserved, first) {
		return "", &NameError{
			Name: subject[:min(len(subject), 3*MaxName)], Have: "another subject",
			Want: b.prefix + "… without wildcards, not one that locks or claims use",
		}
	}
	return key, nil
}
