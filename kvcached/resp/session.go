package resp

import (
	"crypto/sha256"
	"crypto/subtle"
)

// RedisVersion is the version in HELLO and INFO. Clients choose their commands by this version.
const RedisVersion = "7.0.15"

func (c *conn) ping() {
	switch len(c.args) {
	case 1:
		c.simple("PONG")
	case 2:
		c.payload(c.args[1])
	default:
		c.fail("ERR wrong number of arguments for 'ping' command")
	}
}

func (c *conn) echo() { c.payload(c.args[1]) }

func (c *conn) quit() {
	c.ok()
	c.closing = true
}

func (c *conn) selectCommand() {
	n, ok := parseInteger(c.args[1])
	switch {
	case !ok:
		c.fail(errNotInteger)
	case n < 0 || n >= Databases:
		c.fail("ERR DB index is out of range")
	default:
		c.selectDB(int(n))
		c.ok()
	}
}

const errWrongPass = "WRONGPASS invalid username-password pair or user is disabled."

const errNoAuth = "NOAUTH Authentication required."

// notPermitted returns the error of a user who may only read.
func (c *conn) notPermitted(to command) (refused string) {
	refused = "NOPERM this user has no permissions to run the '" + to.name + "' command"
	c.refuses(reasonDenied, refused, c.userName())
	return refused
}

// login authenticates the connection. refused is the error if the password is wrong.
func (c *conn) login(name, password []byte) (refused string) {
	if len(c.server.accounts) == 0 {
		if string(name) == "default" {
			return ""
		}
		return errWrongPass
	}
	digest := sha256.Sum256(password)
	a := c.server.accounts[string(name)]
	if a == nil || subtle.ConstantTimeCompare(digest[:], a.digest[:]) == 0 {
		c.server.counters.authFailures.Add(1)
		if c.server.logs.password.due() {
			c.server.o.Logger.Warn("a RESP client gave a wrong password", "remote",
				c.stream.conn.RemoteAddr().String())
		}
		user := ""
		if a != nil {
			user = a.Name
		}
		c.refuses(reasonPassword, errWrongPass, user)
		return errWrongPass
	}
	c.user = a
	c.selectDB(c.db)
	return ""
}

func (c *conn) auth() {
	name, password := []byte("default"), c.args[1]
	switch {
	case len(c.args) > 3:
		c.fail(errSyntax)
		return
	case len(c.args) == 3:
		name, password = c.args[1], c.args[2]
	case len(c.server.accounts) == 0:
		c.fail("ERR AUTH <password> called without any password configured for the default user. Are you sure your " +
			"configuration is correct?")
		return
	}
	if refused := c.login(name, password); refused != "" {
		c.fail(refused)
		return
	}
	c.ok()
}

const errHelloAuth = "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO " +
	"<proto> AUTH " +
	"<user> <pass> option can be used to authenticate the client and select the RESP protocol version at the same time"

func (c *conn) hello() {
	proto := int64(c.proto)
	if len(c.args) > 1 {
		var ok bool
		if proto, ok = parseInteger(c.args[1]); !ok {
			c.fail("ERR Protocol version is not an integer or out of range")
			return
		}
		if proto != 2 && proto != 3 {
			c.fail("NOPROTO unsupported protocol version")
			return
		}
	}
	var name []byte
	for i := 2; i < len(c.args); i++ {
		left := len(c.args) - 1 - i
		switch {
		case c.word(i, "auth") && left >= 2:
			if refused := c.login(c.args[i+1], c.args[i+2]); refused != "" {
				c.fail(refused)
				return
			}
			i += 2
		case c.word(i, "setname") && left >= 1:
			if name = c.args[i+1]; !isName(name) {
				c.fail(errClientName)
				return
			}
			i++
		default:
			c.fail("ERR Syntax error in HELLO option '" + string(c.args[i][:min(len(c.args[i]), maxName)]) + "'")
			return
		}
	}
	if !c.authed() {
		c.fail(errHelloAuth)
		return
	}
	c.proto = int(proto)
	if name != nil {
		c.name = string(name)
	}
	c.greet()
}

// greet replies a description of the server, as HELLO does.
func (c *conn) greet() {
	c.mapping(7)
	c.bulk("server")
	c.bulk("redis")
	c.bulk("version")
	c.bulk(RedisVersion)
	c.bulk("proto")
	c.integer(int64(c.proto))
	c.bulk("id")
	c.integer(int64(c.id))
	c.bulk("mode")
	c.bulk("standalone")
	c.bulk("role")
	c.bulk("master")
	c.bulk("modules")
	c.array(0)
}
