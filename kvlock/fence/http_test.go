package fence_test

import (
	"context"
	"database/sql"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"tenure/kvlock"
	"tenure/kvlock/fence"
)

// inProcess takes requests to a handler without a network, which would stop the time
// of a bubble.
type inProcess struct{ handler http.Handler }

func (p inProcess) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	p.handler.ServeHTTP(w, r)
	resp := w.Result()
	resp.Request = r
	return resp, nil
}

// A service keeps what is put to it, behind a [fence.Handler].
type service struct {
	client http.Client
	mu     sync.Mutex
	lines  []string
}

func newService(guard fence.Raiser) *service {
	s := new(service)
	s.client.Transport = &fence.Transport{Base: inProcess{&fence.Handler{Guard: guard, Next: s}}}
	return s
}

func (s *service) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body) // of a test
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(body) > 0 {
		s.lines = append(s.lines, string(body))
	}
}

func (s *service) put(ctx context.Context, hold fence.Hold, text string) error {
	r, err := http.NewRequestWithContext(fence.NewContext(ctx, hold), http.MethodPut, "http://service/", strings.NewReader(text))
	if err != nil {
		return err
	}
	resp, err := s.client.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return fence.CheckResponse(resp)
}

func (s *service) write(ctx context.Context, hold *kvlock.Lock, text string) error {
	return s.put(ctx, fence.Hold{Resource: hold.Name(), Token: hold.Token()}, text)
}

func (s *service) raise(ctx context.Context, hold *kvlock.Lock) error {
	return s.write(ctx, hold, "")
}

func (s *service) texts(*testing.T) []string { return s.lines }

// serve has a handler answer one request with the given headers.
func serve(h *fence.Handler, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPut, "/thing", nil)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// K53, S10
func TestHandlerAnswers(t *testing.T) {
	const token, resource = fence.HeaderToken, fence.HeaderResource
	tests := []struct {
		name    string
		headers []string
		want    int
		highest string
		option  int // with Optional
	}{
		{"same token", []string{token, "7", resource, "r"}, 200, "", 200},
		{"larger token", []string{token, "8", resource, "r"}, 200, "", 200},
		{"escaped name", []string{token, "1", resource, "a%2Fb%20%C3%A4"}, 200, "", 200},
		{"stale token", []string{token, "6", resource, "r"}, 412, "7", 412},
		{"nothing", nil, 400, "", 200},
		{"no token", []string{resource, "r"}, 400, "", 400},
		{"no resource", []string{token, "7"}, 400, "", 400},
		{"empty resource", []string{token, "7", resource, ""}, 400, "", 400},
		{"long resource", []string{token, "7", resource, strings.Repeat("x", 501)}, 400, "", 400},
		{"garbled resource", []string{token, "7", resource, "%zz"}, 400, "", 400},
		{"two resources", []string{token, "7", resource, "r", resource, "s"}, 400, "", 400},
		{"token 0", []string{token, "0", resource, "r"}, 400, "", 400},
		{"negative token", []string{token, "-7", resource, "r"}, 400, "", 400},
		{"garbled token", []string{token, "7x", resource, "r"}, 400, "", 400},
		{"huge token", []string{token, "18446744073709551616", resource, "r"}, 400, "", 400},
		{"two tokens", []string{token, "7", token, "7", resource, "r"}, 400, "", 400},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for _, optional := range []bool{false, true} {
				var guard fence.Guard
				if err := guard.Raise(t.Context(), "r", 7); err != nil {
					t.Fatal(err)
				}
				ran := false
				next := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { ran = true })
				w := serve(&fence.Handler{Guard: &guard, Next: next, Optional: optional}, tt.headers...)
				want := tt.want
				if optional {
					want = tt.option
				}
				if w.Code != want || w.Header().Get(fence.HeaderHighest) != tt.highest {
					t.Errorf("status = %d, highest %q, want %d, %q", w.Code, w.Header().Get(fence.HeaderHighest), want, tt.highest)
				}
				if ran != (want == 200) {
					t.Errorf("handler ran = %v with status %d", ran, w.Code)
				}
			}
		})
	}
}

func TestHandlerPassesTheHoldOnAndMayNameTheResource(t *testing.T) {
	var guard fence.Guard
	var got fence.Hold
	h := &fence.Handler{
		Guard:    &guard,
		Next:     http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got, _ = fence.FromContext(r.Context()) }),
		Resource: func(r *http.Request) string { return strings.TrimPrefix(r.URL.Path, "/") },
	}
	w := serve(h, fence.HeaderToken, "7", fence.HeaderResource, "lie")
	if want := (fence.Hold{Resource: "thing", Token: 7}); w.Code != 200 || got != want {
		t.Errorf("hold = %v, status %d, want %v, 200", got, w.Code, want)
	}
	if guard.Mark("thing") != 7 || guard.Mark("lie") != 0 {
		t.Errorf("marks = %d, %d, want 7, 0", guard.Mark("thing"), guard.Mark("lie"))
	}
	h.Resource = func(*http.Request) string { return "" }
	if w := serve(h, fence.HeaderToken, "7"); w.Code != 400 {
		t.Errorf("status = %d, want 400", w.Code)
	}
}

// brokenGuard cannot be asked.
type brokenGuard struct{ error }

func (g brokenGuard) Raise(context.Context, string, uint64) error { return g.error }

func TestGuardThatCannotBeAskedLetsNothingThrough(t *testing.T) {
	h := &fence.Handler{
		Guard: brokenGuard{errors.New("secret")},
		Next:  http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("handler ran") }),
	}
	w := serve(h, fence.HeaderToken, "7", fence.HeaderResource, "r")
	if w.Code != 503 || strings.Contains(w.Body.String(), "secret") {
		t.Errorf("answer = %d %q, want 503 and no secret", w.Code, w.Body)
	}
}

// F4: no newer request is handled, and answered, while an older one may still write.
func TestRequestOfTheNextHoldWaitsForTheHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var guard fence.Guard
		var mu sync.Mutex
		var order []string
		note := func(s string) {
			mu.Lock()
			defer mu.Unlock()
			order = append(order, s)
		}
		s := new(service)
		s.client.Transport = &fence.Transport{Base: inProcess{&fence.Handler{
			Guard: &guard,
			Next: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				hold, _ := fence.FromContext(r.Context())
				if hold.Resource == "r" && hold.Token == 1 {
					time.Sleep(time.Minute)
					note("old write")
					return
				}
				note(hold.Resource + " is written")
			}),
		}}}
		var all sync.WaitGroup
		all.Go(func() { wantNil(t, "old request", s.put(t.Context(), fence.Hold{Resource: "r", Token: 1}, "x")) })
		synctest.Wait()
		all.Go(func() { wantNil(t, "new request", s.put(t.Context(), fence.Hold{Resource: "r", Token: 2}, "x")) })
		synctest.Wait()
		wantNil(t, "request for another resource", s.put(t.Context(), fence.Hold{Resource: "s", Token: 1}, "x"))

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		r, err := http.NewRequestWithContext(fence.NewContext(ctx, fence.Hold{Resource: "r", Token: 3}), http.MethodPut, "http://service/", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := s.client.Transport.RoundTrip(r)
		if err != nil || resp.StatusCode != 503 {
			t.Errorf("request that gave up = %v, %v, want 503", resp, err)
		}
		all.Wait()
		if want := []string{"s is written", "old write", "r is written"}; !slices.Equal(order, want) {
			t.Errorf("order = %q, want %q", order, want)
		}
	})
}

func TestHandlerThatPanicsLetsTheNextIn(t *testing.T) {
	var guard fence.Guard
	h := &fence.Handler{Guard: &guard, Next: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })}
	func() {
		defer func() { _ = recover() }() // as net/http does
		serve(h, fence.HeaderToken, "1", fence.HeaderResource, "r")
	}()
	h.Next = http.NotFoundHandler()
	if w := serve(h, fence.HeaderToken, "1", fence.HeaderResource, "r"); w.Code != 404 {
		t.Errorf("status = %d, want 404", w.Code)
	}
}

// F4: two processes serve the same table; one is paused in its handler after the
// check, and checks again as it writes.
func TestHandlerThatWasPausedIsRefusedAsItCommits(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, db *database) {
		paused, goOn := make(chan struct{}), make(chan struct{})
		newProcess := func(before func()) *service {
			s := new(service)
			s.client.Transport = &fence.Transport{Base: inProcess{&fence.Handler{
				Guard: db.guard,
				Next: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					before()
					hold, _ := fence.FromContext(r.Context())
					if err := db.guard.Do(r.Context(), hold.Resource, hold.Token, func(tx *sql.Tx) error {
						return line(r.Context(), hold.Token, "written")(tx)
					}); err != nil {
						fence.Refuse(w, err)
					}
				}),
			}}}
			return s
		}
		first := newProcess(func() { close(paused); <-goOn })
		second := newProcess(func() {})
		late := make(chan error, 1)
		go func() { late <- first.put(t.Context(), fence.Hold{Resource: "r", Token: 1}, "x") }()
		<-paused
		wantNil(t, "request of the next hold", second.put(t.Context(), fence.Hold{Resource: "r", Token: 2}, "x"))
		close(goOn)
		err := <-late
		if got, ok := errors.AsType[*fence.StaleError](err); !ok || *got != (fence.StaleError{Resource: "r", Have: 1, Want: 2}) {
			t.Errorf("late request = %v, want token 1 to be stale at mark 2", err)
		}
		if tokens, _ := db.lines(t); !slices.Equal(tokens, []uint64{2}) {
			t.Errorf("written under %d, want 2 only", tokens)
		}
	})
}

func TestTransportSendsNothingWithoutAHold(t *testing.T) {
	sent := 0
	transport := &fence.Transport{Base: inProcess{http.HandlerFunc(func(http.ResponseWriter, *http.Request) { sent++ })}}
	tests := []struct {
		ctx  context.Context
		want error
	}{
		{t.Context(), fence.ErrInput},
		{fence.NewContext(t.Context(), fence.Hold{Resource: "r"}), fence.ErrStale},
		{fence.NewContext(t.Context(), fence.Hold{Token: 1}), fence.ErrInput},
	}
	for _, tt := range tests {
		r, err := http.NewRequestWithContext(tt.ctx, http.MethodGet, "http://service/", nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := transport.RoundTrip(r); !errors.Is(err, tt.want) {
			t.Errorf("RoundTrip = %v, want %v", err, tt.want)
		}
	}
	if sent != 0 {
		t.Errorf("requests sent = %d, want 0", sent)
	}
}

func TestTransportAsksHoldAndLeavesTheRequestAlone(t *testing.T) {
	var got http.Header
	transport := &fence.Transport{
		Base: inProcess{http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r.Header })},
		Hold: func(*http.Request) fence.Hold { return fence.Hold{Resource: " a/ä\n", Token: 9} },
	}
	r := httptest.NewRequest(http.MethodGet, "http://service/", nil)
	if _, err := transport.RoundTrip(r); err != nil {
		t.Fatal(err)
	}
	if len(r.Header) != 0 {
		t.Errorf("headers of the request given = %v, want none", r.Header)
	}
	if got.Get(fence.HeaderToken) != "9" || got.Get(fence.HeaderResource) != "%20a%2F%C3%A4%0A" {
		t.Errorf("headers sent = %v, want token 9 and an escaped name", got)
	}
}

func TestAnswersThatAreNoRefusalAreNoError(t *testing.T) {
	fenced := httptest.NewRequest(http.MethodGet, "/", nil)
	fenced.Header.Set(fence.HeaderToken, "1")
	fenced.Header.Set(fence.HeaderResource, "r")
	tests := []struct {
		name    string
		code    int
		highest string
		request *http.Request
	}{
		{"done", 200, "7", fenced},
		{"another precondition", 412, "", fenced},
		{"garbled", 412, "x", fenced},
		{"request without a token", 412, "7", httptest.NewRequest(http.MethodGet, "/", nil)},
		{"no request", 412, "7", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			header := http.Header{}
			header.Set(fence.HeaderHighest, tt.highest)
			if err := fence.CheckResponse(&http.Response{StatusCode: tt.code, Header: header, Request: tt.request}); err != nil {
				t.Errorf("CheckResponse = %v, want nil", err)
			}
		})
	}
}
