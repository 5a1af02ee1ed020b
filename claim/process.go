package claim

import (
	"crypto/sha256"
	"encoding/hex"
)

// That a process is gone can be proven on its own machine: there is no process of
// its number, or one that began at another time (rule C5). A number means something
// only within one boot of one machine and one namespace of process numbers, and a
// time within one namespace of clocks; [machine] names all of that. A container
// usually has namespaces of its own: what ran in an earlier one has to be waited
// for.

// gone reports proof that the process that wrote m has ended.
func gone(m member) bool {
	if m.PID <= 0 || m.Start == "" || m.Machine == "" || m.Machine != machine() {
		return false
	}
	if start := startOf(m.PID); start != "" {
		return start != m.Start
	}
	return noProcess(m.PID)
}

// digest shortens what identifies a machine, which nobody else has to read.
func digest(parts string) string {
	sum := sha256.Sum256([]byte(parts))
	return hex.EncodeToString(sum[:8])
}
