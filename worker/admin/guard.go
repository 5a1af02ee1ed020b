package admin

import (
	"crypto/sha256"
	"crypto/subtle"
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// A guard decides who may look.
type guard struct {
	token, user, password string
	anyone                bool // no secret, and no care for the name that the server is called by
}

// closed reports whether a secret is asked for.
func (g *guard) closed() bool { return g.token != "" || g.password != "" }

// admits reports whether a request shows the secret, if there is one: as a bearer
// token, as user and password, or the token as the password of any user, since a
// browser has no other way.
func (g *guard) admits(r *http.Request) bool {
	if !g.closed() {
		return true
	}
	if token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok {
		return g.token != "" && same(token, g.token)
	}
	user, password, ok := r.BasicAuth()
	if !ok {
		return false
	}
	byToken := g.token != "" && same(password, g.token)
	byPassword := g.password != "" && same(user, g.user) && same(password, g.password)
	return byToken || byPassword
}

// same compares in a time that says nothing about where they differ.
func same(have, want string) bool {
	a, b := sha256.Sum256([]byte(have)), sha256.Sum256([]byte(want))
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1
}

// rebound reports whether a request came by a name that is not ours: without a secret,
// a page of anybody could have its own name point to this machine and read what its
// visitor can reach (DNS rebinding). An address cannot be pointed elsewhere.
func (g *guard) rebound(r *http.Request) bool {
	if g.anyone || g.closed() {
		return false
	}
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.Trim(host, "[]")
	_, err := netip.ParseAddr(host)
	return err != nil && host != "localhost"
}

// only returns next for those who may look.
func (g *guard) only(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case g.rebound(r):
			http.Error(w, "this server goes by its address or localhost, unless it asks for a token or a password", http.StatusMisdirectedRequest)
		case !g.admits(r):
			if g.token != "" {
				w.Header().Add("WWW-Authenticate", `Bearer realm="tenure"`)
			}
			w.Header().Add("WWW-Authenticate", `Basic realm="tenure", charset="UTF-8"`)
			http.Error(w, "a token or a password is needed", http.StatusUnauthorized)
		default:
			next.ServeHTTP(w, r)
		}
	})
}
