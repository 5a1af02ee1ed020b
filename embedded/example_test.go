package embedded_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tenure/embedded"
)

func ExampleStart() {
	srv, err := embedded.Start()
	if err != nil {
		log.Fatal(err)
	}
	defer srv.Stop()

	nc, err := srv.Connect()
	if err != nil {
		log.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		log.Fatal(err)
	}
	kv, err := js.CreateKeyValue(context.Background(), jetstream.KeyValueConfig{Bucket: "demo"})
	if err != nil {
		log.Fatal(err)
	}
	revision, err := kv.PutString(context.Background(), "key", "value")
	fmt.Println(revision, err)
	// Output:
	// 1 <nil>
}

// A server for other processes of the same machine too, which keeps its data.
func ExampleStart_store() {
	dir, err := os.MkdirTemp("", "example-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)

	srv, err := embedded.Start(embedded.Listen("127.0.0.1:0"), embedded.Store(dir))
	if err != nil {
		log.Fatal(err)
	}
	defer srv.Stop()
	nc, err := nats.Connect(srv.URL())
	if err != nil {
		log.Fatal(err)
	}
	defer nc.Close()
	fmt.Println("connected:", nc.IsConnected())

	_, err = embedded.Start(embedded.Store(dir))
	fmt.Println("in use:", errors.Is(err, embedded.ErrStoreInUse))
	// Output:
	// connected: true
	// in use: true
}
