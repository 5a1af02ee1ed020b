package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"html/template"
	"net/http"
	"slices"
	"time"

	"tenure/claim"
	"tenure/kvlock"
)

// beatEvery is how often a stream of events says something, so that a browser whose
// network has gone notices, and proxies do not cut it.
const beatEvery = 15 * time.Second

// chosen returns the pool and the group that a request is about, the first one if it
// names none. It answers the request if there is none.
func (s *Server) chosen(w http.ResponseWriter, r *http.Request) (pool *Pool, group string, ok bool) {
	if pool = s.pool.Load(); pool == nil {
		w.Header().Set("Refresh", "1")
		http.Error(w, errNothing.Error(), http.StatusServiceUnavailable)
		return nil, "", false
	}
	groups := pool.groups()
	group = r.URL.Query().Get("group")
	if group == "" {
		group = groups[0]
	}
	if !slices.Contains(groups, group) {
		http.Error(w, "this process has no worker in that group", http.StatusNotFound)
		return nil, "", false
	}
	return pool, group, true
}

// page answers with the whole page as it is now.
func (s *Server) page(w http.ResponseWriter, r *http.Request) {
	pool, group, ok := s.chosen(w, r)
	if !ok {
		return
	}
	v := s.read(r.Context(), pool, group)
	code := http.StatusOK
	if v.err != nil {
		code = http.StatusServiceUnavailable
	}
	var html []template.HTML
	for _, section := range v.sections(nil).sections {
		html = append(html, template.HTML(section.html())) // it comes from our templates, which escape
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(code)
	// Who asked may have gone.
	_ = templates.ExecuteTemplate(w, "page", map[string]any{"Group": group, "At": v.at, "Sections": html})
}

// read reads a group and the locks. Requests take turns, and those that have waited
// are served with what was read meanwhile.
func (s *Server) read(ctx context.Context, pool *Pool, group string) *view {
	asked := time.Now()
	select {
	case s.reading <- struct{}{}:
		defer func() { <-s.reading }()
	case <-ctx.Done():
		return &view{pool: pool, group: group, at: asked, err: context.Cause(ctx)}
	}
	if v := s.last; v != nil && v.pool == pool && v.group == group && v.at.After(asked) {
		return v
	}
	v := &view{pool: pool, group: group}
	v.status, v.err = claim.ReadStatus(ctx, pool.Bucket, group)
	if v.err == nil {
		v.locks, v.noLock = kvlock.ReadLocks(ctx, pool.Bucket)
	}
	v.at = time.Now()
	s.last = v
	return v
}

// events answers with the blocks of the page that change, as they change, until the
// client goes or the server ends.
func (s *Server) events(w http.ResponseWriter, r *http.Request) {
	pool, group, ok := s.chosen(w, r)
	if !ok {
		return
	}
	viewer, err := s.live.enter(pool, group)
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	defer s.live.leave(viewer)
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // a proxy shall pass it on at once
	out := http.NewResponseController(w)
	beat := time.NewTicker(beatEvery)
	defer beat.Stop()
	for text := ": hello\n\n"; ; {
		_ = out.SetWriteDeadline(time.Now().Add(writeTimeout)) // if it cannot be set the server's own ends the stream
		if _, err := fmt.Fprint(w, text); err != nil || out.Flush() != nil {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-beat.C:
			text = ": beat\n\n"
		case <-viewer.poke:
			data, err := json.Marshal(map[string]any{"at": time.Now().UnixMilli(), "blocks": s.live.news(viewer)})
			if err != nil {
				panic("admin: " + err.Error()) // strings and numbers
			}
			text = fmt.Sprintf("data: %s\n\n", data)
		}
	}
}

// files serves the files that the page needs.
func (s *Server) files(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-cache") // the next version of the program has others
	http.ServeFileFS(w, r, static, "static"+r.URL.Path)
}
