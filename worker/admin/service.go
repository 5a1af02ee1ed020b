package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"tenure/claim"
	"tenure/kvlock/bucket"
)

// ServiceName is the name of the service that [StartService] starts, in $SRV.PING.tenure
// and the like.
const ServiceName = "tenure"

// flushTimeout is how long the start waits for the server to hear of subscriptions.
const flushTimeout = 5 * time.Second

// A Service answers requests about a pool on NATS. It ends with [Service.Stop].
type Service struct {
	stop func() error
}

// StartService makes the pool a service: it answers $SRV requests for ping, info and
// stats, and has two endpoints, whose subjects info names.
//
//   - status, tenure.<bucket>.<group>.status: what `tenure status --json` prints. One of
//     the pools of the group answers.
//   - drain, tenure.<bucket>.<group>.drain.<id>: calls drain once it has answered, and
//     nothing else; id names this pool.
//
// Names stand in subjects as they do in keys. Who may publish to the subjects may ask:
// that is up to the permissions of the account. It blocks until the server knows the
// subscriptions; one that it denies is [bucket.ErrPermission].
func StartService(ctx context.Context, pool Pool, id string, drain func(), log *slog.Logger) (*Service, error) {
	group := pool.Claimers[0].Group()
	g, err := bucket.EncodeName(group)
	if err != nil {
		return nil, fmt.Errorf("admin: service: group %w", err)
	}
	me, err := bucket.EncodeName(id)
	if err != nil {
		return nil, fmt.Errorf("admin: service: id %w", err)
	}
	prefix := ServiceName + "." + pool.Bucket.Name() + "." + g
	nc := pool.Bucket.JetStream().Conn()
	service, err := micro.AddService(nc, micro.Config{
		Name: ServiceName, Version: semantic(version()), Description: "a pool of workers that share the partitions of a group",
		Metadata: map[string]string{
			"bucket": pool.Bucket.Name(), "group": group, "id": id, "workers": strconv.Itoa(len(pool.Claimers)), "version": version(),
		},
	})
	if err != nil {
		return nil, fmt.Errorf("admin: service: %w", err)
	}
	asked := sync.OnceFunc(drain)
	err = errors.Join(
		service.AddEndpoint("status", micro.HandlerFunc(func(r micro.Request) {
			status, err := claim.ReadStatus(context.WithoutCancel(ctx), pool.Bucket, group)
			if err != nil {
				_ = r.Error("503", err.Error(), nil) // if it gets lost, it is asked again
				return
			}
			respond(nc, r, status)
		}), micro.WithEndpointSubject(prefix+".status")),
		service.AddEndpoint("drain", micro.HandlerFunc(func(r micro.Request) {
			log.Info("a drain is asked for over NATS")
			respond(nc, r, map[string]bool{"draining": true})
			asked()
		}), micro.WithEndpointSubject(prefix+".drain."+me), micro.WithEndpointQueueGroupDisabled()),
	)
	flush, cancel := context.WithTimeout(ctx, flushTimeout)
	defer cancel()
	_ = nc.FlushWithContext(flush) // a server that is away hears of the subscriptions when it is back
	if denied := deniedSubject(nc.LastError()); denied != "" && (strings.HasPrefix(denied, "$SRV.") || strings.HasPrefix(denied, prefix)) {
		err = &bucket.PermissionError{Subject: denied, Err: nc.LastError()}
	}
	if err != nil {
		_ = service.Stop() // what failed is reported
		return nil, fmt.Errorf("admin: service: %w", err)
	}
	return &Service{stop: service.Stop}, nil
}

// Stop ends the service. It does not wait for answers that are under way.
func (s *Service) Stop() error {
	if err := s.stop(); err != nil {
		return fmt.Errorf("admin: service: %w", err)
	}
	return nil
}

// respond answers with v as JSON, or with why it cannot.
func respond(nc *nats.Conn, r micro.Request, v any) {
	data, err := json.Marshal(v)
	switch {
	case err != nil:
		err = r.Error("500", err.Error(), nil)
	case int64(len(data)) > nc.MaxPayload()-1024: // headers take some
		err = r.Error("413", fmt.Sprintf("the answer has %d bytes, the server takes %d", len(data), nc.MaxPayload()), nil)
	default:
		err = r.Respond(data)
	}
	_ = err // if it gets lost, it is asked again
}

// deniedSubject returns the subject that a permission error of the server is about.
func deniedSubject(err error) string {
	if !errors.Is(err, nats.ErrPermissionViolation) {
		return ""
	}
	_, subject, _ := strings.Cut(err.Error(), `"`)
	subject, _, _ = strings.Cut(subject, `"`)
	return subject
}

// isSemantic is what a service may have as its version.
var isSemantic = regexp.MustCompile(`^\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?$`)

// semantic returns a version as a service may have it: 0.0.0 for one that has none.
func semantic(version string) string {
	if v := strings.TrimPrefix(version, "v"); isSemantic.MatchString(v) {
		return v
	}
	return "0.0.0"
}
