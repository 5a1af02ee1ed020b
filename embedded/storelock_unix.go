//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package embedded

import (
	"errors"
	"os"
	"syscall"
)

// lockFile opens and locks a file, nil if it is locked already. The lock belongs
// to the open file, so that it holds between two servers of one process too.
func lockFile(name string) (*os.File, error) {
	file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o640)
	if err != nil {
		return nil, err
	}
	for {
		err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err == nil {
		return file, nil
	}
	_ = file.Close() // nothing was written
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, nil
	}
	return nil, &os.PathError{Op: "flock", Path: name, Err: err}
}
