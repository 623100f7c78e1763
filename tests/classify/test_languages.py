"""Failures in other languages: the English words that they are read in."""

import pytest

from fallbackd.classify.classifier import classify
from fallbackd.classify.languages import in_english
from fallbackd.classify.reset_time import read_sentence
from fallbackd.core.protocol import Evidence

NOW = 1785578400.0


@pytest.mark.parametrize(
    ("text", "english"),
    [
        ("Zu viele Anfragen, bitte später erneut versuchen", "too many requests"),
        ("Netzwerkverbindung unterbrochen", "network connection"),
        ("Clé API invalide", "api key invalid"),
        ("CLE API INVALIDE", "api key invalid"),
        ("Saldo insuficiente", "insufficient balance"),
        ("Tempo limite esgotado", "timed out used up"),
        ("Il server è sovraccarico", "overloaded"),
        ("Verbinding geweigerd", "connection refused"),
        ("Przekroczono limit szybkości", "exceeded rate limit"),
        ("Překročen limit požadavků", "exceeded rate limit"),
        ("Превышено время ожидания", "timed out"),
        ("Недостатньо коштів", "insufficient balance credit balance"),
        ("Çok fazla istek", "too many requests"),
        ("مفتاح API غير صالح", "api key invalid"),
        ("अमान्य API कुंजी", "invalid api key"),
        ("Kuota habis", "quota used up"),
        ("Mô hình không tồn tại", "model not found"),
        ("余额不足，请充值", "insufficient balance credit balance"),
        ("請求過於頻繁", "too many requests"),
        ("レート制限に達しました", "rate limit"),
        ("할당량을 초과했습니다", "quota exceeded"),
    ],
)
def test_a_message_is_read_in_english(text: str, english: str) -> None:
    assert english in " ".join(in_english(text))


@pytest.mark.parametrize(
    "text",
    [
        "Error: rate limit exceeded, the model is not available",
        "The error in the server limits a request to the crashed parameter",
        "",
        "a",
    ],
)
def test_english_stays_as_it_is(text: str) -> None:
    assert in_english(text) == ()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("余额不足", "billing"),
        ("请求过于频繁，请稍后再试", "rate_limit"),
        ("Clé API invalide", "auth"),
        ("Превышен дневной лимит использования", "usage_limit"),
    ],
)
def test_words_of_any_language_go_before_a_bare_status(text: str, reason: str) -> None:
    evidence = Evidence(stream="http", http_status=403, body={"error": {"message": text}})
    failure = classify(evidence, now=NOW)
    assert failure is not None
    assert failure.reason.value == reason


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("Limit odnowi się najpóźniej za 12 minut", 720),
        ("Riprova tra un minuto", 60),
        ("Attends 1 minute.", 60),
        ("Das Guthaben wird um Mitternacht zurückgesetzt", 14 * 3600),
        ("Votre quota sera réinitialisé à minuit.", 14 * 3600),
        ("額度將於明天 UTC 午夜重置", 14 * 3600),
        ("사용량은 매일 오후 9시에 초기화됩니다", 11 * 3600),
        ("ліміт оновиться через 12 днів", 12 * 86400),
        ("Reset am 14.08. um 09:00", 12 * 86400 + 23 * 3600),
        ("Limit odnowi się 2. sierpnia", 14 * 3600),
        ("Vui lòng thử lại sau 30-60 giây.", 60),
        ("Yarın tekrar deneyin.", 14 * 3600),
        ("Límite de velocidad alcanzado, reintentando en 2000ms (intento 1/3)", None),
        ("レート制限に達しました。2000ミリ秒後に再試行します（試行1/3）", None),
    ],
)
def test_a_time_is_read_in_other_languages(text: str, seconds: float | None) -> None:
    found = read_sentence(text, now=NOW, timezone="UTC")
    assert found == (None if seconds is None else pytest.approx(seconds, abs=61.0))


def test_a_span_with_an_abbreviated_unit_is_read() -> None:
    assert read_sentence("Quota dépassé. Réessayez dans 30s.", now=NOW) == 30.0
    assert read_sentence("Límite alcanzado, inténtalo de nuevo en 5 h", now=NOW) == 18_000.0


def test_of_a_long_message_the_end_is_read_too() -> None:
    assert read_sentence(f"{'x' * 4_000} It renews in 2 days.", now=NOW) == 2 * 86_400.0
