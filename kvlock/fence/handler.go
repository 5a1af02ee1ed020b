package fence

import (
	"context"
	"errors"
	"net/http"
	"strconv"
)

// A Raiser is a guard as [Handler] needs it: a [*Guard], [*KV] or [*SQL]. Raise blocks
// until the mark is token or higher, or ctx is done, and fails with a [*StaleError] if it
// is higher. It may be called concurrently.
type Raiser interface {
	Raise(ctx context.Context, resource string, token uint64) error
}

// A Handler lets requests through to another handler unless their token is stale. It
// must not be copied once it is in use.
//
// It raises the mark before the handler runs, and lets the next request for the same
// resource in when the handler has returned. So within one process nothing comes
// between check and write, also if a handler takes long: a request with a larger token
// waits for it, and whoever got an answer to that one knows that no earlier request
// is still being handled. Handlers must end with the context of their request, or
// nobody else gets in; what they leave running behind them is not guarded.
//
// Processes do not wait for each other. Where several serve the same resource, a
// handler that was paused in one could write after a later hold has written through
// another. There the handler has to check again as it writes, in [SQL.Do] or [KV.Put]
// with the hold of [FromContext], and give their error to [Refuse].
type Handler struct {
	Guard Raiser       // keeps the marks; must not be nil
	Next  http.Handler // does the work; must not be nil

	// Resource says which resource a request is for, in place of [HeaderResource],
	// which is what the client says. It returns "" if there is none. It may be nil.
	Resource func(*http.Request) string

	// Optional lets requests pass that carry neither [HeaderToken] nor
	// [HeaderResource]: they are not guarded. What is garbled never passes.
	Optional bool

	gates gates
}

// ServeHTTP calls Next with a request whose context carries the hold, or answers
//
//   - 412 with [HeaderHighest] if the token is stale,
//   - 400 if the token or the resource is missing or garbled,
//   - 503 if the guard could not be asked, or the client left while it waited.
//
// It blocks while Next serves another request for the same resource, until the
// context of the request is done.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	hold, ok, err := h.hold(r)
	if err != nil {
		Refuse(w, err)
		return
	}
	if !ok {
		h.Next.ServeHTTP(w, r)
		return
	}
	leave, err := h.gates.enter(r.Context(), hold.Resource)
	if err != nil {
		Refuse(w, err)
		return
	}
	defer leave()
	if err := h.Guard.Raise(r.Context(), hold.Resource, hold.Token); err != nil {
		Refuse(w, err)
		return
	}
	h.Next.ServeHTTP(w, r.WithContext(NewContext(r.Context(), hold)))
}

// hold returns the hold of a request; ok is false if the request may pass without.
func (h *Handler) hold(r *http.Request) (hold Hold, ok bool, err error) {
	token, resource := r.Header.Values(HeaderToken), r.Header.Values(HeaderResource)
	if h.Optional && len(token)+len(resource) == 0 {
		return Hold{}, false, nil
	}
	if hold.Token, err = parseToken(token); err != nil {
		return Hold{}, false, err
	}
	if h.Resource != nil {
		hold.Resource = h.Resource(r)
		return hold, true, checkResource(hold.Resource)
	}
	hold.Resource, err = parseResource(resource)
	return hold, true, err
}

// Refuse answers a request whose write a guard has refused with err: 412 with
// [HeaderHighest] for a [*StaleError], 400 for an [*InputError], and 503 otherwise.
// The text of the answer says no more of any other error.
func Refuse(w http.ResponseWriter, err error) {
	if stale, ok := errors.AsType[*StaleError](err); ok {
		w.Header().Set(HeaderHighest, strconv.FormatUint(stale.Want, 10))
		http.Error(w, err.Error(), http.StatusPreconditionFailed)
		return
	}
	if errors.Is(err, ErrInput) {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	http.Error(w, "fence: the token could not be checked", http.StatusServiceUnavailable)
}
