package worker

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/nats-io/nats.go"
)

// The variables a command is told about its partition and message with.
const (
	envGroup      = "TENURE_GROUP"
	envPartition  = "TENURE_PARTITION"
	envToken      = "TENURE_TOKEN"
	envWorker     = "TENURE_WORKER"
	envBucket     = "TENURE_BUCKET"
	envCheckpoint = "TENURE_CHECKPOINT"
	envSubject    = "TENURE_SUBJECT"
	envSequence   = "TENURE_SEQ"
	envDelivered  = "TENURE_DELIVERED"
	envHeader     = "TENURE_HEADER_"
)

// maxVariable is below what Linux takes for one variable (128 KiB).
const maxVariable = 100 << 10

// told are the variables that are never inherited: a worker that is itself run by
// a worker must not pass on what it was told about another partition.
var told = []string{
	envGroup, envPartition, envToken, envWorker, envCheckpoint,
	envSubject, envSequence, envDelivered,
}

// environ returns the environment of a command that runs for p.
func (c *Command) environ(p Partition) []string {
	env := slices.DeleteFunc(os.Environ(), func(variable string) bool {
		name, _, _ := strings.Cut(variable, "=")
		return strings.HasPrefix(name, envHeader) || slices.Contains(told, name)
	})
	env = append(env, c.Env...)
	env = append(env,
		envGroup+"="+p.Group(),
		envPartition+"="+p.Name(),
		envToken+"="+strconv.FormatUint(p.Token(), 10),
		envWorker+"="+p.Worker(),
	)
	if c.Bucket != "" {
		env = append(env, envBucket+"="+c.Bucket)
	}
	if checkpoint := string(p.Checkpoint()); checkpoint != "" && isVariable(checkpoint) {
		env = append(env, envCheckpoint+"="+checkpoint)
	}
	return env
}

// messageEnviron returns the variables that tell of m.
func messageEnviron(m *Message) []string {
	env := []string{
		envSubject + "=" + m.Subject,
		envSequence + "=" + strconv.FormatUint(m.Sequence, 10),
		envDelivered + "=" + strconv.Itoa(m.Delivered),
	}
	for name, value := range headerVariables(m.Header) {
		env = append(env, name+"="+value)
	}
	return env
}

// headerVariables maps headers to variables. Headers whose names differ only in
// what a variable cannot show share one, as the values of one header do: separated
// by commas, in the order of the headers' names.
func headerVariables(header nats.Header) map[string]string {
	names := make([]string, 0, len(header))
	for name := range header {
		names = append(names, name)
	}
	slices.Sort(names)
	variables := make(map[string]string, len(names))
	for _, name := range names {
		variable := envHeader + strings.Map(func(r rune) rune {
			switch {
			case r >= 'a' && r <= 'z':
				return r - 'a' + 'A'
			case r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
				return r
			}
			return '_'
		}, name)
		value := strings.Join(header[name], ",")
		if earlier, ok := variables[variable]; ok {
			value = earlier + "," + value
		}
		if isVariable(value) {
			variables[variable] = value
		}
	}
	return variables
}

// isVariable reports whether value can be passed in an environment.
func isVariable(value string) bool {
	return len(value) <= maxVariable && utf8.ValidString(value) && !strings.ContainsRune(value, 0)
}
