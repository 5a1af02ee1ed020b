// Package config is the configuration of the tenure program: one [Config],
// filled from flags over the environment over a YAML file over defaults, and the
// logger.
//
// A setting has one name everywhere: the flag --drain-timeout, the key
// drain-timeout in the file, and the variable TENURE_DRAIN_TIMEOUT. What belongs
// to the connection has the variables that the nats program has taught people
// (NATS_URL, NATS_CREDS, …).
//
// The package parses no command line. The struct tags say what a flag parser
// needs: name, help, default, placeholder and group are those of
// github.com/alecthomas/kong; environ is the variable of a setting, read here
// and not by the parser, which would print the value of a secret on an error.
//
// Errors match [ErrInvalid], are one line long, and say where the value stands,
// what it is and what is wanted. Secrets do not appear in them, nor in logs.
package config
