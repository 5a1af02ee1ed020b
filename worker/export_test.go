package worker

// What the fuzz targets need of the inside.

// ReadPosition reports whether a checkpoint is taken for a position, and returns
// it as it would be saved again.
func ReadPosition(checkpoint []byte) ([]byte, error) {
	p, err := readPosition(checkpoint)
	return p.bytes(), err
}

// SubjectCovers is subjectCovers.
func SubjectCovers(subject, filter string) bool { return subjectCovers(subject, filter) }

// SubjectsOverlap is subjectsOverlap.
func SubjectsOverlap(subject, filter string) bool { return subjectsOverlap(subject, filter) }

// HeaderVariables is headerVariables.
var HeaderVariables = headerVariables
