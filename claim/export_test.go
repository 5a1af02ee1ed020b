package claim

import "tenure/kvlock/bucket"

// ReadSettings parses settings as they stand in the bucket, and returns them as
// they would be written back.
func ReadSettings(value []byte, revision uint64) ([]byte, error) {
	s, err := parseSettings(bucket.Entry{Key: "group.g", Value: value, Revision: revision})
	if err != nil {
		return nil, err
	}
	return s.encode(), nil
}

// NewSettings returns the settings of a new group, as stored.
func NewSettings(partitions ...string) ([]byte, error) {
	s, err := newSettings(partitions)
	return s.encode(), err
}
