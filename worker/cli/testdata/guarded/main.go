// Guarded is the command of the end-to-end tests: it handles one message by one
// write to their guard. It does not care whether that was accepted: a late write is
// for the guard to refuse, and what follows it for the worker not to begin.
//
// It speaks to the kernel directly, since it is started for every message and
// package net would double what a start takes.
package main

import (
	"os"
	"strconv"
	"strings"
	"syscall"
)

func main() {
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		fail(err.Error())
	}
	if err := syscall.Connect(fd, &syscall.SockaddrUnix{Name: os.Getenv("E2E_GUARD")}); err != nil {
		fail(err.Error())
	}
	subject := os.Getenv("TENURE_SUBJECT")
	say(fd, strings.Join([]string{
		os.Getenv("TENURE_WORKER"), os.Getenv("TENURE_PARTITION"), os.Getenv("TENURE_TOKEN"),
		os.Getenv("TENURE_SEQ"), subject[strings.LastIndexByte(subject, '.')+1:], strconv.Itoa(os.Getpid()),
	}, " "))
	hear(fd) // go
	say(fd, "write")
	hear(fd) // accepted or refused
}

func say(fd int, line string) {
	if _, err := syscall.Write(fd, []byte(line+"\n")); err != nil {
		fail(err.Error())
	}
}

// hear waits for an answer, one short line.
func hear(fd int) {
	var line [16]byte
	for {
		n, err := syscall.Read(fd, line[:])
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			fail(err.Error())
		}
		if n == 0 {
			fail("the guard has gone")
		}
		return
	}
}

func fail(text string) {
	_, _ = os.Stderr.WriteString("guarded: " + text + "\n")
	os.Exit(2)
}
