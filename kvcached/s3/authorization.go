package s3

import (
	"net/http"
	"slices"
	"strings"
	"time"
)

const (
	maxAuthorization = 4096 // bytes of the header
	maxSignedHeaders = 64   // names
)

// credential is the scope and the key of a signature.
type credential struct{ accessKey, date, region, service string }

func (c credential) scope() string {
	return c.date + "/" + c.region + "/" + c.service + "/" + scopeEnd
}

// authorization is a request's signature with its parameters.
type authorization struct {
	credential
	signed    []string // names of headers, lower case, sorted
	signature string
	amzDate   string
}

// parseCredential reads accessKey/date/region/service/aws4_request; an access key may hold slashes.
func parseCredential(text string) (credential, bool) {
	f := strings.Split(text, "/")
	n := len(f) - 5
	if n < 0 || f[n+4] != scopeEnd {
		return credential{}, false
	}
	c := credential{accessKey: strings.Join(f[:n+1], "/"), date: f[n+1], region: f[n+2], service: f[n+3]}
	return c, c.accessKey != "" && len(c.date) == 8 && c.service == signedService
}

// parseSigned reads the list of signed headers, which must hold host.
func parseSigned(text string) ([]string, bool) {
	names := strings.Split(text, ";")
	if len(names) > maxSignedHeaders || !slices.IsSorted(names) || !slices.Contains(names, "host") {
		return nil, false
	}
	for _, n := range names {
		if n == "" || n != strings.ToLower(n) {
			return nil, false
		}
	}
	return names, true
}

// isSignature tells whether text has the form of a signature.
func isSignature(text string) bool {
	if len(text) != 64 {
		return false
	}
	for i := range len(text) {
		if c := text[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// parseAuthorization reads an Authorization header.
func parseAuthorization(header string) (authorization, error) {
	bad := func(why string) (authorization, error) {
		return authorization{}, refusal("AuthorizationHeaderMalformed", "The Authorization header is malformed: %s.",
			why)
	}
	if len(header) > maxAuthorization {
		return bad("it is too long")
	}
	scheme, rest, _ := strings.Cut(header, " ")
	if scheme != algorithm {
		return authorization{}, refusal("InvalidRequest", "The authorization mechanism you have provided is not "+
			"supported. Please use %s.", algorithm)
	}
	var a authorization
	seen := 0
	for part := range strings.SplitSeq(rest, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		ok, bit := false, 0
		switch name {
		case "Credential":
			a.credential, ok = parseCredential(value)
			bit = 1
		case "SignedHeaders":
			a.signed, ok = parseSigned(value)
			bit = 2
		case "Signature":
			a.signature, ok = value, isSignature(value)
			bit = 4
		}
		if !ok || seen&bit != 0 {
			return bad("each of Credential=<key>/<date>/<region>/s3/aws4_request, SignedHeaders (sorted, with host) " +
				"and Signature must be there once")
		}
		seen |= bit
	}
	if seen != 7 {
		return bad("it needs Credential, SignedHeaders and Signature")
	}
	return a, nil
}

// when is the time at which a request was signed. It fills amzDate from the Date header if there is
// no other.
func (a *authorization) when(r *http.Request) (time.Time, error) {
	a.amzDate = r.Header.Get("X-Amz-Date")
	if a.amzDate == "" {
		if t, err := http.ParseTime(r.Header.Get("Date")); err == nil {
			a.amzDate = t.UTC().Format(amzTime)
		}
	}
	t, err := time.Parse(amzTime, a.amzDate)
	if err != nil {
		return t, refusal("AccessDenied", "AWS authentication requires a valid Date or x-amz-date header.")
	}
	if a.amzDate[:8] != a.date {
		return t, refusal("SignatureDoesNotMatch", "The credential's date is not that of the request.")
	}
	return t, nil
}
