package embedded

import (
	"fmt"
	"os"
	"path/filepath"
)

// storeLockFile is the file in a store directory that is locked while a server
// uses it. It stays there: to remove it would let two servers hold locks on two
// files of that name.
const storeLockFile = "tenure.lock"

// lockStore locks the store directory dir, which it makes if need be. The lock
// ends when the file returned is closed, or with the process.
func lockStore(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, fmt.Errorf("make store directory: %w", err)
	}
	file, err := lockFile(filepath.Join(dir, storeLockFile))
	if err != nil {
		return nil, fmt.Errorf("lock store directory: %w", err)
	}
	if file == nil {
		return nil, &StoreInUseError{Dir: dir}
	}
	return file, nil
}
