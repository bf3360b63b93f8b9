package leg

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/internal/room"
	"github.com/cognitora/dataplane/router/learned"
	"github.com/cognitora/dataplane/router/where"
)

// subject is the prompt that a leg is about.
type subject struct {
	prompt *where.Prompt
	piece  *Piece          // of a rehearsal; nil: the request has a body
	lesson *learned.Lesson // of the prompt; nil: the answer teaches no tokens
}

// lessons are those of a dispatcher: what requests keep for theirs, and those under way.
type lessons struct {
	room    *room.Room
	running atomic.Int32
}

const (
	maxLessonBytes = 64 << 20  // of all requests' lessons together, with the answers; what has no room teaches nothing
	maxLesson      = 512 << 10 // bytes of a body that teaches
	maxLessons     = 8         // at once; further ones are dropped, because they cost engines time
	lessonWithin   = 5 * time.Second
	lessonAgain    = time.Minute // between the lessons of a node that has no /tokenize
	maxLessonReply = 8 << 20     // bytes of an engine's answer
)

var errNoTokenize = errors.New("the engine has no /tokenize")

// takeLesson keeps what the prompt can teach, unless it teaches nothing or there is no room. Only
// vLLM has the form of /tokenize that a lesson needs.
func (l *Leg) takeLesson(a *attempt) {
	l.dropLesson()
	size := len(l.Request.Body())
	if l.Work != Answer || l.Continues || a.member.node.Info().Engine != "vllm" || size == 0 || size > maxLesson {
		return
	}
	if a.sent.UnixNano() < a.member.node.unteaching.Load() {
		return
	}
	x := l.prompt.Lesson(a.member.node.UpstreamModel(l.model.name))
	switch {
	case x == nil:
	case l.d.lessons.room.Take(int64(x.Size())):
		l.lesson = x
	default:
		l.d.metrics.Lessons.WithLabelValues("dropped").Inc()
	}
}

// hear lets the lesson read a document or event of the answer. The lesson is dropped if there is no
// room for what it keeps of the answer.
func (l *Leg) hear(doc []byte) {
	x := l.lesson
	if x == nil {
		return
	}
	had := x.Size()
	x.Answer.Read(doc)
	if more := int64(x.Size() - had); more <= 0 {
		l.d.lessons.room.Give(-more)
	} else if !l.d.lessons.room.Take(more) {
		l.d.lessons.room.Give(int64(had))
		l.lesson = nil
		l.d.metrics.Lessons.WithLabelValues("dropped").Inc()
	}
}

// dropLesson gives up the lesson.
func (l *Leg) dropLesson() {
	if l.lesson != nil {
		l.d.lessons.room.Give(int64(l.lesson.Size()))
		l.lesson = nil
	}
}

// giveLesson asks the answering node, in the background, for the tokens that the lesson needs.
func (l *Leg) giveLesson(a *attempt) {
	d, x, n := l.d, l.lesson, a.member
	if x == nil {
		return
	}
	if d.lessons.running.Add(1) > maxLessons || !d.errands.reserve(x.Size()) {
		d.lessons.running.Add(-1)
		d.metrics.Lessons.WithLabelValues("dropped").Inc()
		return
	}
	l.lesson = nil
	auth := bytes.Clone(l.Request.Auth)
	d.errands.run(x.Size(), func() {
		defer d.lessons.running.Add(-1)
		defer d.lessons.room.Give(int64(x.Size()))
		result := "taught"
		if err := d.teach(x, n, auth); err != nil {
			result = "failed"
			d.log.Debug("an engine has not taught the tokens of a chat", "node", n.node.ID, "error", err)
		}
		d.metrics.Lessons.WithLabelValues(result).Inc()
	})
}

// teach runs a lesson. auth is the client's key; it counts if the router has none for the node.
func (d *Dispatcher) teach(x *learned.Lesson, n *member, auth []byte) error {
	until := time.Now().Add(lessonWithin)
	return x.Run(func(body []byte) ([]uint32, error) {
		q := relay.Request{
			Method: http.MethodPost, Path: "/tokenize", Header: []byte("Content-Type: application/json\r\n"),
			Body: [][]byte{body},
		}
		address(&q, n.node.Node, auth, nil)
		status, doc, err := n.exchange(&q, until, maxLessonReply)
		switch {
		case err != nil:
			return nil, err
		case status == http.StatusNotFound || status == http.StatusMethodNotAllowed:
			n.node.unteaching.Store(time.Now().Add(lessonAgain).UnixNano())
			return nil, errNoTokenize
		case status != http.StatusOK:
			return nil, fmt.Errorf("/tokenize answers %d", status)
		}
		return learned.IDs(doc)
	})
}
