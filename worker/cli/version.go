package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
)

type versionCommand struct {
	JSON bool `name:"json" help:"Print one JSON object."`
}

func (*versionCommand) Help() string {
	return `Prints the versions of the program, of Go, and of the NATS server and client in it.

Example:

    tenure version --json`
}

// A version is what `tenure version` prints.
type version struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
	Server   string `json:"nats_server"`
	Client   string `json:"nats_client"`
}

func (c *versionCommand) Run(r *run) error {
	v := readVersion()
	if c.JSON {
		return printJSON(r.Out, v)
	}
	_, err := fmt.Fprintf(r.Out, "tenure %s (%s, nats-server %s, nats.go %s)\n", v.Version, v.Go, v.Server, v.Client)
	return err
}

// readVersion reads what the linker has noted down.
func readVersion() version {
	v := version{Version: "unknown", Go: runtime.Version(), Server: "unknown", Client: "unknown"}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	if info.Main.Version != "" {
		v.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Revision = s.Value
		case "vcs.modified":
			v.Modified = s.Value == "true"
		}
	}
	for _, dep := range info.Deps {
		switch dep.Path {
		case "github.com/nats-io/nats-server/v2":
			v.Server = dep.Version
		case "github.com/nats-io/nats.go":
			v.Client = dep.Version
		}
	}
	return v
}

// printJSON prints v as one line.
func printJSON(w io.Writer, v any) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	return encoder.Encode(v)
}
