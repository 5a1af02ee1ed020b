package embedded

import (
	"errors"
	"os"
	"syscall"
)

// errSharingViolation is what Windows answers when a file is open elsewhere in a
// mode that excludes this one.
const errSharingViolation = syscall.Errno(32)

// lockFile opens a file for this handle alone, nil if it is open already.
func lockFile(name string) (*os.File, error) {
	path, err := syscall.UTF16PtrFromString(name)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	const shareWithNobody = 0
	handle, err := syscall.CreateFile(path, syscall.GENERIC_READ|syscall.GENERIC_WRITE, shareWithNobody, nil,
		syscall.OPEN_ALWAYS, syscall.FILE_ATTRIBUTE_NORMAL, 0)
	if errors.Is(err, errSharingViolation) {
		return nil, nil
	}
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(handle), name), nil
}
