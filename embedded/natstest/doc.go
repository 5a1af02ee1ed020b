// Package natstest is a kit for tests of what runs on NATS JetStream.
package natstest
