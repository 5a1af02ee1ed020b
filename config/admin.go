package config

import (
	"net"
	"net/netip"
	"strconv"
)

// Admin says how a pool can be looked at.
type Admin struct {
	AdminAddress      string `name:"admin" environ:"TENURE_ADMIN" group:"Admin:" placeholder:"ADDRESS" help:"Serve probes, metrics and a status page at this host and port; at 127.0.0.1 if it is :PORT."`
	AdminTokenFile    string `name:"admin-token-file" environ:"TENURE_ADMIN_TOKEN_FILE" group:"Admin:" placeholder:"FILE" help:"File with a token that has to be shown for all but the probes."`
	AdminUser         string `name:"admin-user" environ:"TENURE_ADMIN_USER" group:"Admin:" placeholder:"NAME" help:"User who may look, with the password of the file."`
	AdminPasswordFile string `name:"admin-password-file" environ:"TENURE_ADMIN_PASSWORD_FILE" group:"Admin:" placeholder:"FILE" help:"File with the password of that user."`
	AdminOpen         bool   `name:"admin-open" environ:"TENURE_ADMIN_OPEN" group:"Admin:" help:"Let everybody look who reaches an address that is not of this machine alone."`
	Service           bool   `name:"service" environ:"TENURE_SERVICE" group:"Admin:" help:"Be a service on NATS too: $$SRV ping, info and stats, and the endpoints status and drain."`
}

// Listen returns the address to listen at: that of this machine alone if no host is
// given.
func (a *Admin) Listen() string {
	host, port, _ := net.SplitHostPort(a.AdminAddress) // it was checked
	if host == "" {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port)
}

// closed reports whether a secret is asked for.
func (a *Admin) closed() bool { return a.AdminTokenFile != "" || a.AdminPasswordFile != "" }

func (c *Config) checkAdmin() error {
	for _, s := range []struct {
		name  string
		given bool
	}{
		{"admin-token-file", c.AdminTokenFile != ""},
		{"admin-user", c.AdminUser != ""},
		{"admin-password-file", c.AdminPasswordFile != ""},
		{"admin-open", c.AdminOpen},
	} {
		if s.given && c.AdminAddress == "" {
			return c.wrong(s.name, "no address to serve at", "admin with it")
		}
	}
	if (c.AdminUser == "") != (c.AdminPasswordFile == "") {
		given := "admin-user"
		if c.AdminUser == "" {
			given = "admin-password-file"
		}
		return c.wrong(given, "one of the two", "admin-user and admin-password-file together")
	}
	if c.AdminAddress == "" {
		return nil
	}
	_, port, err := net.SplitHostPort(c.AdminAddress)
	if n, bad := strconv.ParseUint(port, 10, 16); err != nil || bad != nil || strconv.FormatUint(n, 10) != port {
		return c.wrong("admin", strconv.Quote(short(c.AdminAddress)), "HOST:PORT or :PORT")
	}
	if !isLoopback(c.Listen()) && !c.closed() && !c.AdminOpen {
		return c.wrong("admin", strconv.Quote(short(c.AdminAddress))+" and neither token nor password",
			"admin-token-file or admin-user, an address of this machine alone, or admin-open if everybody may look")
	}
	return nil
}

// isLoopback reports whether an address can be reached from this machine only.
func isLoopback(address string) bool {
	host, _, _ := net.SplitHostPort(address)
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.Unmap().IsLoopback()
}
