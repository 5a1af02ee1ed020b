//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd || windows)

package embedded

import (
	"errors"
	"os"
)

// lockFile refuses: without a lock that ends with the process a store directory
// would be open to two servers, or closed for ever after a crash.
func lockFile(name string) (*os.File, error) {
	return nil, &os.PathError{Op: "lock", Path: name, Err: errors.ErrUnsupported}
}
