package worker

import "strings"

// placeholder stands for the partition's name in a filter and in arguments.
const placeholder = "{partition}"

// isToken reports whether name can be a token of a subject, or a part of one.
func isToken(name string) bool {
	return name != "" && !strings.ContainsFunc(name, func(r rune) bool {
		return r <= ' ' || r == '.' || r == '*' || r == '>' || r == 0x7f
	})
}

// isFilter reports whether filter is a subject that may have wildcards.
func isFilter(filter string) bool {
	tokens := strings.Split(filter, ".")
	for i, token := range tokens {
		switch {
		case token == "*", token == ">" && i == len(tokens)-1:
		case !isToken(token):
			return false
		}
	}
	return true
}

// subjectCovers reports whether every subject that matches filter matches subject.
func subjectCovers(subject, filter string) bool {
	wide, narrow := strings.Split(subject, "."), strings.Split(filter, ".")
	for i, token := range wide {
		switch {
		case token == ">":
			return len(narrow) > i
		case i >= len(narrow), narrow[i] == ">":
			return false
		case token == "*", token == narrow[i]:
		default:
			return false
		}
	}
	return len(wide) == len(narrow)
}

// subjectsOverlap reports whether some subject may match both. A token that
// contains a wildcard within, as "p*" from "p{partition}", matches anything here.
func subjectsOverlap(subject, filter string) bool {
	one, other := strings.Split(subject, "."), strings.Split(filter, ".")
	for i := range max(len(one), len(other)) {
		switch {
		case i >= len(one):
			return false
		case one[i] == ">":
			return i < len(other)
		case i >= len(other):
			return false
		case other[i] == ">":
			return true
		case strings.Contains(one[i], "*"), strings.Contains(other[i], "*"):
		case one[i] != other[i]:
			return false
		}
	}
	return true
}

// replacePartition puts the name of a partition into text.
func replacePartition(text, name string) string { return strings.ReplaceAll(text, placeholder, name) }
