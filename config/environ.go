package config

import (
	"fmt"
	"time"
)

// Environ returns the settings as variables that a process of the same program reads
// them from, secrets in clear text. Settings that are not given are empty variables,
// which count as not set and hide those of an environment before them.
func (c *Config) Environ() []string {
	var all []string
	for _, s := range c.settings() {
		all = append(all, s.variable+"="+s.text())
	}
	return append(all, "TENURE_CONFIG=")
}

// text returns the value of a setting as [set] reads it.
func (s *setting) text() string {
	if s.field.IsZero() && s.value == "" {
		return ""
	}
	switch value := s.field.Interface().(type) {
	case Secret:
		return value.Reveal()
	case Servers:
		return value.Reveal()
	case time.Duration:
		return value.String()
	default:
		return fmt.Sprint(value)
	}
}
