"""Stands for LiteLLM's keys, which need a database: sk-TEAM-USER is of that team and user."""

from litellm.proxy._types import UserAPIKeyAuth


async def auth(request, api_key):
    prefix, team, user = api_key.split("-", 2)
    if prefix != "sk":
        raise ValueError("no such key")
    return UserAPIKeyAuth(api_key=api_key, team_id=team or None, user_id=user or None)
