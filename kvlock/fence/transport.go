package fence

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
)

// The headers of fenced requests and of answers with the status 412.
const (
	HeaderToken    = "Fencing-Token"    // the token, in decimal
	HeaderResource = "Fencing-Resource" // the name of the resource, escaped as a path segment of a URL
	HeaderHighest  = "Fencing-Highest"  // the least token that is accepted
)

// A Hold is under which token a resource is written.
type Hold struct {
	Resource string
	Token    uint64
}

type holdKey struct{}

// NewContext returns a context that carries hold, for [Transport]. Derive it from the
// context of the lock, so that requests end with the lock.
func NewContext(ctx context.Context, hold Hold) context.Context {
	return context.WithValue(ctx, holdKey{}, hold)
}

// FromContext returns the hold that ctx carries: in a handler behind [Handler] the one
// of the request.
func FromContext(ctx context.Context) (hold Hold, ok bool) {
	hold, ok = ctx.Value(holdKey{}).(Hold)
	return hold, ok
}

// A Transport sends requests with the token they are made under. Its methods may be
// called concurrently.
type Transport struct {
	Base http.RoundTripper // nil: [http.DefaultTransport]

	// Hold says under which hold a request is made. If it is nil the context of the
	// request says so, see [NewContext].
	Hold func(*http.Request) Hold
}

// RoundTrip sends the request with [HeaderToken] and [HeaderResource]. A request
// without a hold, with token 0, or with a name that cannot be used is not sent; the
// error is an [*InputError] or, for 0, a [*StaleError]. A request that was refused is
// an answer and no error, as for every http.RoundTripper: see [CheckResponse].
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	hold, err := t.hold(r)
	if err != nil {
		if r.Body != nil {
			_ = r.Body.Close() // RoundTrip must, and has a better error
		}
		return nil, err
	}
	r = r.Clone(r.Context()) // a RoundTripper must not change the request it was given
	r.Header.Set(HeaderToken, strconv.FormatUint(hold.Token, 10))
	r.Header.Set(HeaderResource, url.PathEscape(hold.Resource))
	base := t.Base
	if base == nil {
		base = http.DefaultTransport
	}
	return base.RoundTrip(r)
}

func (t *Transport) hold(r *http.Request) (Hold, error) {
	var hold Hold
	if t.Hold != nil {
		hold = t.Hold(r)
	} else {
		var ok bool
		if hold, ok = FromContext(r.Context()); !ok {
			return Hold{}, &InputError{Input: "context of the request", Have: "no hold", Want: "one made by NewContext"}
		}
	}
	if err := checkResource(hold.Resource); err != nil {
		return Hold{}, err
	}
	return hold, stale(hold.Resource, hold.Token, 0)
}

// CheckResponse returns a [*StaleError] if the answer says that the token of its
// request is stale, nil for every other answer; a 412 for another reason has no
// [HeaderHighest]. It leaves the body alone.
func CheckResponse(resp *http.Response) error {
	if resp.StatusCode != http.StatusPreconditionFailed || resp.Request == nil {
		return nil
	}
	want, err := strconv.ParseUint(resp.Header.Get(HeaderHighest), 10, 64)
	if err != nil {
		return nil
	}
	token, err := parseToken(resp.Request.Header.Values(HeaderToken))
	if err != nil {
		return nil // it was not a request of a Transport
	}
	resource, err := parseResource(resp.Request.Header.Values(HeaderResource))
	if err != nil {
		return nil
	}
	return &StaleError{Resource: resource, Have: token, Want: want}
}

func parseToken(values []string) (uint64, error) {
	if len(values) != 1 {
		return 0, &InputError{Input: HeaderToken, Have: strconv.Itoa(len(values)) + " of them", Want: "one"}
	}
	token, err := strconv.ParseUint(values[0], 10, 64)
	if err != nil || token == 0 {
		return 0, &InputError{Input: HeaderToken, Have: strconv.Quote(shorten(values[0])), Want: "a number, at least 1"}
	}
	return token, nil
}

func parseResource(values []string) (string, error) {
	if len(values) != 1 {
		return "", &InputError{Input: HeaderResource, Have: strconv.Itoa(len(values)) + " of them", Want: "one"}
	}
	resource, err := url.PathUnescape(values[0])
	if err != nil {
		return "", &InputError{Input: HeaderResource, Have: strconv.Quote(shorten(values[0])), Want: "a name escaped as a path segment"}
	}
	return resource, checkResource(resource)
}
