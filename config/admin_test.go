package config_test

import (
	"strings"
	"testing"

	"tenure/config"
)

func TestAddressThatOthersReachNeedsASecretOrLeave(t *testing.T) {
	t.Parallel()
	tests := []struct {
		address string
		listen  string
		free    bool // without a secret
	}{
		{":9090", "127.0.0.1:9090", true},
		{"127.0.0.1:9090", "127.0.0.1:9090", true},
		{"127.1.2.3:0", "127.1.2.3:0", true},
		{"[::1]:9090", "[::1]:9090", true},
		{"[::ffff:127.0.0.1]:9090", "[::ffff:127.0.0.1]:9090", true},
		{"localhost:9090", "localhost:9090", true},
		{"0.0.0.0:9090", "0.0.0.0:9090", false},
		{"[::]:9090", "[::]:9090", false},
		{"10.0.0.1:9090", "10.0.0.1:9090", false},
		{"localhost.example:9090", "localhost.example:9090", false},
		{"127.0.0.1.example:9090", "127.0.0.1.example:9090", false},
	}
	for _, tt := range tests {
		t.Run(tt.address, func(t *testing.T) {
			t.Parallel()
			text := "admin: '" + tt.address + "'\n"
			err := new(config.Config).Load(config.Sources{File: write(t, text)})
			if (err == nil) != tt.free || err != nil && !strings.Contains(err.Error(), "neither token nor password") {
				t.Errorf("Load = %v, want no error: %v", err, tt.free)
			}
			for _, more := range []string{"admin-token-file: x\n", "admin-user: joe\nadmin-password-file: x\n", "admin-open: true\n"} {
				c := load(t, text+more)
				if got := c.Listen(); got != tt.listen {
					t.Errorf("Listen = %s, want %s", got, tt.listen)
				}
			}
			if err := new(config.Config).Load(config.Sources{File: write(t, text+"admin-open: perhaps\n")}); err == nil || !strings.Contains(err.Error(), "want true or false") {
				t.Errorf("Load = %v, want it to want true or false", err)
			}
		})
	}
}
