"""The pages of notices: webhooks for administrators, wishes for each member."""
