package bucket

// ParseAck is parseAck as far as tests look at it.
func (b *Bucket) ParseAck(data []byte) (seq uint64, code int, err error) {
	a, err := b.parseAck(data)
	if a.Error != nil {
		code = int(a.Error.ErrorCode)
	}
	return a.Sequence, code, err
}
