package webhook

import (
	"bytes"
	"context"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"kubelet-ca-courier/bundle"
)

// Ref names the guarded bundle.
type Ref struct {
	// Namespace and Name are those of the ConfigMap.
	Namespace, Name string
	// Key is the bundle's, in data or binaryData.
	Key string
}

// gate judges changes of the guarded ConfigMap.
type gate struct {
	guarded func() Ref
	clock   clock.PassiveClock
	metrics *metrics
}

var _ admission.Validator[*corev1.ConfigMap] = &gate{}

// ValidateCreate judges a new ConfigMap.
func (g *gate) ValidateCreate(ctx context.Context, created *corev1.ConfigMap) (admission.Warnings, error) {
	return g.answer(ctx, created, func(key string) judgement { return judge(key, nil, created, g.clock.Now()) })
}

// ValidateUpdate judges a change, by whatever verb: put, any patch, server-side apply.
func (g *gate) ValidateUpdate(ctx context.Context, old, changed *corev1.ConfigMap) (admission.Warnings, error) {
	return g.answer(ctx, changed, func(key string) judgement { return judge(key, old, changed, g.clock.Now()) })
}

// ValidateDelete judges a deletion, single or of a collection. Only the namespace controller may delete: the namespace is
// on its way out already, and refusing would leave it half gone.
func (g *gate) ValidateDelete(ctx context.Context, old *corev1.ConfigMap) (admission.Warnings, error) {
	return g.answer(ctx, old, func(string) judgement {
		request, err := admission.RequestFromContext(ctx)
		if err == nil && writerOf(request.UserInfo.Username) == writerNamespaceController {
			return judgement{verdict: bundle.Verdict{Allowed: true}}
		}
		return judgement{verdict: bundle.ReviewDeletion()}
	})
}

// answer judges the object if it is the guarded one, counts the verdict, and puts it into the form of an admission
// response.
func (g *gate) answer(ctx context.Context, object *corev1.ConfigMap, judge func(key string) judgement) (admission.Warnings, error) {
	request, err := admission.RequestFromContext(ctx)
	if err != nil {
		return nil, err
	}
	ref := g.guarded()
	if object.Namespace != ref.Namespace || object.Name != ref.Name {
		g.metrics.unrelated(request)
		return nil, nil
	}
	j := judge(ref.Key)
	g.metrics.reviewed(request, j.verdict)
	if j.verdict.Allowed {
		return warnings(j.verdict), nil
	}
	ctrl.LoggerFrom(ctx).Info("refused a change of the guarded bundle", "operation", request.Operation, "codes", codes(j.verdict))
	return warnings(j.verdict), refusal(request, j)
}

// judgement is a verdict with the fields that it is about.
type judgement struct {
	verdict bundle.Verdict
	// bundleField is the path of the bundle in the object.
	bundleField string
}

// Judge is the verdict of the gate on a change from old, which is nil on creation, to changed, with the bundle under key.
func Judge(key string, old, changed *corev1.ConfigMap, now time.Time) bundle.Verdict {
	return judge(key, old, changed, now).verdict
}

// judge is Judge with the fields that the verdict is about.
func judge(key string, old, changed *corev1.ConfigMap, now time.Time) judgement {
	after := content(changed, key)
	var before value
	var previous []byte // nil on creation, and only then
	if old != nil {
		before = content(old, key)
		previous = append([]byte{}, before.bytes...)
	}
	allow, fault, warning := allowances(old, changed, before.bytes, after.bytes)
	verdict := bundle.Review(previous, after.bytes, now, allow)
	if fault != nil {
		deny(&verdict, *fault)
	}
	if warning != nil {
		verdict.Warnings = append(verdict.Warnings, *warning)
	}
	if before.field != "" && after.field != "" && before.field != after.field && !bytes.Equal(before.bytes, after.bytes) {
		deny(&verdict, bundle.Finding{Code: bundle.MissingBundle, Message: "the key moved from " + before.field + " to " + after.field +
			" with other bytes, where its readers do not look; change the content first, or move it unchanged"})
	}
	if isImmutable(changed) && (old == nil || !isImmutable(old)) {
		deny(&verdict, bundle.Finding{Code: bundle.Immutable, Message: "immutable: true would stop every later rotation; leave it out"})
	}
	return judgement{verdict: verdict, bundleField: fieldPath(after, key)}
}

// value is what a ConfigMap holds under a key.
type value struct {
	field string // data or binaryData; empty where the key is missing
	bytes []byte
}

// content reads the key. The API server sees to it that only one of data and binaryData has it.
func content(object *corev1.ConfigMap, key string) value {
	if text, found := object.Data[key]; found {
		return value{"data", []byte(text)}
	}
	if raw, found := object.BinaryData[key]; found {
		return value{"binaryData", raw}
	}
	return value{}
}

// allowances reads the break-glass annotation. What is set now must be understood. It may name a certificate that neither
// bundle has, as one that slipped out while the gate was away or one of an extra source, which nodes still hold: that is worth
// a warning, for it may also be a slip. An annotation that was there before never stands in the way of later writes.
func allowances(old, changed *corev1.ConfigMap, before, after []byte) (allow bundle.Allowances, fault, warning *bundle.Finding) {
	text := changed.Annotations[bundle.AllowanceAnnotation]
	allow, err := bundle.ParseAllowances(text)
	if old != nil && old.Annotations[bundle.AllowanceAnnotation] == text {
		return allow, nil, nil
	}
	if err != nil {
		message := strings.ReplaceAll(err.Error(), "\n", "; ")
		return nil, badAllowance(message + "; write SHA-256 fingerprints, separated by commas"), nil
	}
	if unknown := allow.Unknown(before, after); len(unknown) > 0 {
		return allow, nil, badAllowance("no certificate of the bundle has the fingerprint " + unknown[0].String() +
			"; if that is not meant, compare it with kubectl courier check -o wide")
	}
	return allow, nil, nil
}

// badAllowance finds fault with a break-glass annotation.
func badAllowance(message string) *bundle.Finding {
	return &bundle.Finding{Code: bundle.BadAllowance, Message: message}
}

// deny adds a reason that only the object, not the bundle in it, can give.
func deny(v *bundle.Verdict, f bundle.Finding) {
	v.Allowed = false
	v.Reasons = append(v.Reasons, f)
}

// isImmutable says whether the object is marked so.
func isImmutable(object *corev1.ConfigMap) bool { return object.Immutable != nil && *object.Immutable }
