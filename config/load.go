package config

import (
	"reflect"
	"strconv"
	"strings"
	"time"
)

// Sources says where settings come from, in falling precedence. The zero Sources
// gives the defaults.
type Sources struct {
	Flags   func(name string) bool // reports whether the setting is in the Config already; nil for none
	Environ []string               // as [os.Environ] returns it; an empty variable counts as not set
	File    string                 // path of the YAML file, empty for none
}

// Load fills every setting that no flag has set and validates the result.
// On an error, which matches [ErrInvalid], c is in part filled.
func (c *Config) Load(from Sources) error {
	var file map[string]entry
	if from.File != "" {
		var err error
		if file, err = readFile(from.File); err != nil {
			return err
		}
	}
	environ := make(map[string]string, len(from.Environ))
	for _, variable := range from.Environ {
		name, value, _ := strings.Cut(variable, "=")
		environ[name] = value
	}
	c.NoColor = environ["NO_COLOR"] != ""

	c.origins = make(map[string]string)
	for _, s := range c.settings() {
		value, origin := s.value, ""
		switch entry, inFile := file[s.name]; {
		case from.Flags != nil && from.Flags(s.name):
			c.origins[s.name] = "--" + s.name
			continue
		case environ[s.variable] != "":
			value, origin = environ[s.variable], s.variable
		case inFile:
			value, origin = entry.value, entry.origin
		}
		c.origins[s.name] = origin
		if want := set(s.field, value); want != "" {
			return &SettingError{Setting: s.name, Origin: origin, Have: s.show(value), Want: want}
		}
	}
	return c.Validate()
}

// A setting is one field of a [Config] with what its tags say.
type setting struct {
	name     string
	variable string
	value    string // by default
	field    reflect.Value
}

// settings returns all settings of c.
func (c *Config) settings() []setting {
	var all []setting
	sections := reflect.ValueOf(c).Elem()
	for _, section := range sections.Fields() {
		if section.Kind() != reflect.Struct {
			continue
		}
		for field, value := range section.Fields() {
			if name, ok := field.Tag.Lookup("name"); ok {
				all = append(all, setting{
					name: name, variable: field.Tag.Get("environ"), value: field.Tag.Get("default"), field: value,
				})
			}
		}
	}
	return all
}

// show returns value as an error may show it.
func (s *setting) show(value string) string {
	if s.field.Type() == reflect.TypeFor[Secret]() {
		return redacted
	}
	return strconv.Quote(short(value))
}

// set parses text into a field. It returns what it wants if text cannot be that.
// The empty text is the zero value: no source but a missing default gives it.
func set(field reflect.Value, text string) (want string) {
	switch {
	case field.Kind() == reflect.String:
		field.SetString(text)
	case text == "":
		field.SetZero()
	case field.Type() == reflect.TypeFor[time.Duration]():
		d, err := time.ParseDuration(text)
		if err != nil {
			return "a duration such as 15s"
		}
		field.SetInt(int64(d))
	case field.Kind() == reflect.Int:
		n, err := strconv.Atoi(text)
		if err != nil {
			return "a whole number"
		}
		field.SetInt(int64(n))
	case field.Kind() == reflect.Bool:
		is, err := strconv.ParseBool(text)
		if err != nil {
			return "true or false"
		}
		field.SetBool(is)
	case field.Kind() == reflect.Uint64:
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return "a whole number, 0 or more"
		}
		field.SetUint(n)
	default:
		panic("config: no parser for " + field.Type().String())
	}
	return ""
}
