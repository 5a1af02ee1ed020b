// Tenure runs commands under locks and shares partitions among workers, on NATS
// JetStream. See `tenure --help`.
package main

import (
	"context"
	"os"

	"tenure/worker/cli"
)

func main() {
	os.Exit(cli.Main(context.Background(), os.Args[1:], os.Environ(), cli.Stdio{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}))
}
