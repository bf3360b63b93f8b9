"""LiteLLM hook that tells cgn-router for whom a request is: the team as tenant, and the user."""

from litellm.integrations.custom_logger import CustomLogger


class TenantHeaders(CustomLogger):
    async def async_pre_call_hook(self, user_api_key_dict, cache, data, call_type):
        for member in ("extra_headers", "headers"):  # a client may send these in its body
            given = data.get(member) or {}
            if member in data:
                data[member] = {k: v for k, v in given.items() if not k.lower().startswith("x-cgn-")}
        named = dict(data.get("extra_headers") or {})
        if user_api_key_dict.team_id:
            named["x-cgn-tenant"] = user_api_key_dict.team_id
        if user_api_key_dict.user_id:
            named["x-cgn-user"] = user_api_key_dict.user_id
        data["extra_headers"] = named
        return data


hook = TenantHeaders()
