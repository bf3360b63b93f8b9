// Package address parses the URLs of engines and of nodes' fronts.
package address

import (
	"cmp"
	"fmt"
	"net"
	"net/url"
	"strings"
)

// Address is the address of an engine, or of a node's front.
type Address struct {
	Network  string // tcp or unix
	Addr     string // host:port, or the socket's path
	Host     string // value of the Host header
	BasePath string // path before /v1, without a trailing slash
	TLS      bool
}

// Parse parses http://host[:port][/base], https://… or unix:///path/of/socket. Parse's errors
// contain no user and password.
func Parse(text string) (Address, error) {
	u, err := url.Parse(text)
	shown := Redact(text)
	if err != nil || u.Scheme == "" {
		return Address{}, fmt.Errorf("address %q: want http://host:port, https://host:port or unix:///path", shown)
	}
	switch u.Scheme {
	case "unix", "http+unix":
		if u.Path == "" || u.Path == "/" || u.Host != "" {
			return Address{}, fmt.Errorf("address %q: a Unix socket is written unix:///path/of/socket", shown)
		}
		return Address{Network: "unix", Addr: u.Path, Host: "localhost"}, nil
	case "http", "https":
		return parseHTTP(u, shown)
	}
	return Address{}, fmt.Errorf("address %q: want http://host:port, https://host:port or unix:///path", shown)
}

// Redact hides the text before the last @ of a URL, for errors and logs. A password may contain any
// other character.
func Redact(address string) string {
	at := strings.LastIndexByte(address, '@')
	if at < 0 {
		return address
	}
	scheme := ""
	if i := strings.Index(address[:at], "://"); i >= 0 {
		scheme = address[:i+len("://")]
	}
	return scheme + "***" + address[at:]
}

func parseHTTP(u *url.URL, shown string) (Address, error) {
	host, port := u.Hostname(), u.Port()
	if u.User != nil {
		return Address{}, fmt.Errorf("address %q: a URL is shown in logs, so it takes no user or password; put an "+
			"engine's key into a file and name that with api_key_file", shown)
	}
	if host == "" || u.RawQuery != "" || u.Fragment != "" {
		return Address{}, fmt.Errorf("address %q: want %s://host:port, without query or fragment", shown, u.Scheme)
	}
	port = cmp.Or(port, map[string]string{"http": "80", "https": "443"}[u.Scheme])
	if n, err := net.LookupPort("tcp", port); err != nil || n == 0 {
		return Address{}, fmt.Errorf("address %q: port %q is not in 1..65535", shown, port)
	}
	return Address{
		Network: "tcp", Addr: net.JoinHostPort(host, port), Host: u.Host,
		BasePath: strings.TrimSuffix(u.EscapedPath(), "/"), TLS: u.Scheme == "https",
	}, nil
}

// IsHost tells whether text is an IP address without brackets, or a possible host name: labels of
// letters, digits, hyphens and _.
func IsHost(text string) bool {
	if net.ParseIP(text) != nil {
		return true
	}
	if text == "" || len(text) > 253 {
		return false
	}
	for label := range strings.SplitSeq(strings.TrimSuffix(text, "."), ".") {
		wrong := func(r rune) bool {
			return r != '-' && r != '_' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
		}
		if label == "" || len(label) > 63 || label[0] == '-' || strings.ContainsFunc(label, wrong) {
			return false
		}
	}
	return true
}
