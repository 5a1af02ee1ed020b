package admin_test

import (
	"encoding/base64"
	"strings"
	"testing"

	"tenure/worker/admin"
)

func basic(user, password string) string {
	return "Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))
}

func TestSecretIsAskedForEverythingButTheProbes(t *testing.T) {
	token, password := admin.WithToken("secret"), admin.WithPassword("joe", "hunter2")
	tests := []struct {
		name   string
		opts   []admin.Option
		header string
		want   int
	}{
		{"no secret", nil, "", 200},
		{"token, nothing", []admin.Option{token}, "", 401},
		{"token", []admin.Option{token}, "Authorization: Bearer secret", 200},
		{"another token", []admin.Option{token}, "Authorization: Bearer secre", 401},
		{"an empty token", []admin.Option{token}, "Authorization: Bearer ", 401},
		{"token as the password", []admin.Option{token}, basic("", "secret"), 200},
		{"user and an empty password with a token", []admin.Option{token}, basic("", ""), 401},
		{"password", []admin.Option{password}, basic("joe", "hunter2"), 200},
		{"another user", []admin.Option{password}, basic("jane", "hunter2"), 401},
		{"another password", []admin.Option{password}, basic("joe", "hunter"), 401},
		{"a password as a token", []admin.Option{password}, "Authorization: Bearer hunter2", 401},
		{"an empty token with a password", []admin.Option{password}, "Authorization: Bearer ", 401},
		{"both, by token", []admin.Option{token, password}, "Authorization: Bearer secret", 200},
		{"both, by password", []admin.Option{token, password}, basic("joe", "hunter2"), 200},
		{"both, the token as a user's password", []admin.Option{token, password}, basic("jane", "secret"), 200},
	}
	for _, tt := range tests {
		got := get(admin.New(tt.opts...).Handler(), "/metrics", tt.header)
		if got.Code != tt.want {
			t.Errorf("%s: /metrics = %d, want %d", tt.name, got.Code, tt.want)
		}
		asked := strings.Join(got.Header().Values("WWW-Authenticate"), ", ")
		if tt.want == 401 && !strings.Contains(asked, "Basic ") {
			t.Errorf("%s: WWW-Authenticate = %q, want it to ask for a password", tt.name, asked)
		}
	}
}

// A page of somebody else whose name points to this machine must not read anything.
func TestServerWithoutASecretGoesByItsAddressOnly(t *testing.T) {
	tests := []struct {
		host string
		opts []admin.Option
		want int
	}{
		{"127.0.0.1:9090", nil, 200},
		{"[::1]:9090", nil, 200},
		{"[::1]", nil, 200},
		{"localhost:9090", nil, 200},
		{"10.1.2.3", nil, 200},
		{"evil.example:9090", nil, 421},
		{"evil.example", nil, 421},
		{"localhost.evil.example", nil, 421},
		{"127.0.0.1.evil.example:9090", nil, 421},
		{"", nil, 421},
		{"pool.example", []admin.Option{admin.WithAnyHost()}, 200},
		{"pool.example", []admin.Option{admin.WithToken("x")}, 401},
	}
	for _, tt := range tests {
		if got := get(admin.New(tt.opts...).Handler(), "/metrics", "Host: "+tt.host); got.Code != tt.want {
			t.Errorf("/metrics of %q = %d, want %d", tt.host, got.Code, tt.want)
		}
	}
}

// No path but those, no method but GET and HEAD; and headers that let a browser run
// nothing that is not ours.
func TestServerAnswersItsPathsOnlyAndWithStrictHeaders(t *testing.T) {
	h := admin.New().Handler()
	for _, path := range []string{"/debug/pprof/", "/metrics/x", "/../etc/passwd", "/index.html"} {
		if got := get(h, path); got.Code != 404 && got.Code != 307 {
			t.Errorf("%s = %d, want 404", path, got.Code)
		}
	}
	for _, path := range []string{"/livez", "/metrics", "/no"} {
		header := get(h, path).Header()
		csp := header.Get("Content-Security-Policy")
		if !strings.HasPrefix(csp, "default-src 'none'; ") || strings.Contains(csp, "unsafe") || strings.Contains(csp, "http") {
			t.Errorf("Content-Security-Policy of %s = %q, want nothing but own files", path, csp)
		}
		for name, want := range map[string]string{"X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Cache-Control": "no-store", "Referrer-Policy": "no-referrer"} {
			if got := header.Get(name); got != want {
				t.Errorf("%s of %s = %q, want %q", name, path, got, want)
			}
		}
	}
}
