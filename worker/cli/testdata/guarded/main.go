// Guarded is the command of the end-to-end tests: it handles one message by one
// write to their guard, and ends with 0 if that was accepted.
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
	if answer := hear(fd); answer != "go\n" {
		fail("answer = " + answer)
	}
	say(fd, "write")
	if hear(fd) != "accepted\n" {
		os.Exit(1)
	}
}

func say(fd int, line string) {
	if _, err := syscall.Write(fd, []byte(line+"\n")); err != nil {
		fail(err.Error())
	}
}

// hear reads one short line. The guard says nothing before it is asked.
func hear(fd int) string {
	var line [16]byte
	for {
		n, err := syscall.Read(fd, line[:])
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			fail(err.Error())
		}
		return string(line[:n])
	}
}

func fail(text string) {
	_, _ = os.Stderr.WriteString("guarded: " + text + "\n")
	os.Exit(2)
}
