"""What of the contract several partitions cannot keep together, by name, and why.

What is promised instead is tested beside this file.
"""

_ORDER = "the order of a queue and of a list is each partition's own"
_DEPTH = "a queue's depth would be counted by each partition: max_depth is Unsupported"
_LIMITS = "limits and fairness would be counted by each partition: they are Unsupported"
_TWO_HOMES = "its jobs belong to two partitions by key, group or parents: Unsupported"

APART = {
    **dict.fromkeys(
        """
        test_a_lease_that_need_not_wait_does_not
        test_law_09_find_is_newest_first_by_pages
        test_a_page_skips_and_repeats_nothing_while_jobs_come_and_go
        test_search_is_for_plain_text_in_id_task_key_and_tenant
        test_queues_count_by_state_and_clock
        test_a_second_cancel_does_not_use_up_the_limit
        test_law_09_the_oldest_matching_jobs_are_chosen_up_to_the_limit
        test_expiry_of_a_finished_or_missing_job_changes_nothing
        test_overdue_has_the_time_to_the_next_deadline
        test_finished_jobs_past_retention_come_whole_and_in_order
        test_law_07_reaped_jobs_go_behind_too
        test_law_07_in_the_same_millisecond_the_order_of_settling_counts
        test_law_07_order_keep_gives_the_old_place_back
        test_law_07_order_keep_with_a_delay_goes_by_the_delay
        test_a_batch_of_every_verdict_harms_no_neighbour
        test_law_02_never_after_it_expired
        test_many_expired_jobs_in_front_hide_nothing
        test_the_limit_is_kept
        test_only_tasks_the_worker_knows
        test_a_thousand_at_once
        test_law_09_receipts_come_in_the_order_of_the_jobs
        test_settings_count_from_now_on_for_jobs_already_there
        test_law_03_tokens_and_arrival_go_on_growing
        test_the_line_keeps_its_order
        test_a_batch_answers_each_in_order
        test_a_batch_goes_before_what_comes_after_its_head
        test_law_07_never_behind_a_lower_priority
        test_law_07_what_comes_back_goes_behind_what_is_due
        test_queues_are_served_in_the_order_asked
        test_redriven_jobs_go_to_the_tail_in_the_order_of_arrival
        test_retime
        test_a_tally_counts_what_matches
        test_who_goes_before_can_be_asked
        test_the_deadline_is_the_requests_then_the_jobs_then_the_queues
        test_law_07_who_comes_back_is_first_again
        test_merge_lays_the_payload_over_the_waiting_holders
        test_follow_ups_that_cannot_come_in
        test_a_parent_that_goes_on_elsewhere_has_not_ended
        """.split(),
        _ORDER,
    ),
    **dict.fromkeys(
        """
        test_the_depth_is_never_passed
        test_moved_jobs_pass_a_full_or_closed_queue
        test_follow_ups_pass_a_full_or_closed_queue
        test_jobs_of_one_batch_see_each_other
        test_the_depth_counts_waiting_jobs_only
        test_every_setting_is_kept
        test_declaring_again_replaces_every_setting
        test_a_queue_dropped_and_declared_again_starts_empty
        test_law_01_everything_answered_survives_a_restart
        test_a_full_queue_comes_last
        test_a_change_counts_only_while_its_ground_is_there
        test_declared_only_if_new_leaves_what_is_there
        test_no_change_of_many_at_once_is_lost
        test_one_of_many_who_declare_a_new_queue_makes_it
        """.split(),
        _DEPTH,
    ),
    **dict.fromkeys(
        """
        test_a_jump_in_the_books_of_tenants
        test_a_slot_that_one_frees_ends_the_wait_of_the_other
        test_limits_and_groups_and_children_over_two_engines
        test_law_01_flow_survives_a_restart
        test_a_jump_neither_opens_nor_closes_a_rate
        """.split(),
        _LIMITS,
    ),
    **dict.fromkeys(
        """
        test_each_filter_alone
        test_known_ids_and_held_keys_are_skipped
        test_every_field_is_kept
        test_follow_ups_that_are_known_need_no_parents
        test_a_child_cancelled_at_the_door
        test_a_held_key_keeps_what_its_job_comes_after
        test_many_parents_and_many_children
        test_a_batch_ends_before_who_cannot_go
        test_a_replaced_job_changes_its_group
        test_a_replaced_job_leaves_its_group
        test_a_merged_job_stays_in_its_group
        test_of_one_key_twice_in_a_call_the_first_comes_in
        """.split(),
        _TWO_HOMES,
    ),
}
