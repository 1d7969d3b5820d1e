// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.ibatch

import com.fasterxml.jackson.databind.node.ObjectNode

/**
 * Batches of one direction: the last plan, and the measurements behind it.
 *
 * @param policy that was set
 * @param bytes of each layer on the network
 */
private[ibatch] final class DirectionBatches(
    direction: Direction,
    val policy: Policy,
    bytes: IndexedSeq[Long],
    traffic: Traffic
) {
  import DirectionBatches._

  private var measured = Option.empty[DirectionProfile]

  /** Seconds to handle a batch; see [[Profile]]. */
  var handling: Double = 0

  private var lastPlan = lonePlan

  /** Batches in the order of their transfer. */
  def batches: IndexedSeq[Batch] = direction.inTransferOrder(lastPlan.plan.batches)

  def isMeasured: Boolean = measured.isDefined

  /** True if all layers are one batch, and it is so small that notices carry its bytes. */
  def isInlineWhole: Boolean = bytes.sum <= traffic.noticeBytes

  /**
   * Take `now`, which the ranks agreed on, if it differs by more than `drift` from the measurements
   * in use. Return true if so.
   */
  def learn(now: DirectionProfile, drift: Double): Boolean = {
    val changed = measured.forall(now.drift(_) > drift)
    if (changed) measured = Some(now)
    changed
  }

  /** Profile for the planner; zeros if nothing was measured. */
  def profile: Profile = {
    val received = (traffic.world - 1).toDouble / traffic.world
    val perByte = measured.fold(0.0)(_.perByte)
    def byBytes(seconds: DirectionProfile => Double): IndexedSeq[Double] =
      measured.map(seconds).filter(_ > 0).fold(IndexedSeq.empty[Double])(all =>
        bytes.map(all * _ / bytes.sum)
      )
    Profile(
      startup = measured.fold(0.0)(_.startup),
      transfer = bytes.map(_ * received * perByte),
      compute = measured.fold(bytes.map(_ => 0.0))(_.compute),
      bytes = bytes,
      noticeBytes = traffic.noticeBytes,
      isSequential = policy.isSequential,
      gap = measured.flatMap(_.gap),
      sum = byBytes(_.sum),
      update = byBytes(_.update),
      handling = handling
    )
  }

  /**
   * Plan as if this direction had the network for itself. Use one batch while the policy lacks the
   * profile that it needs.
   */
  def planAlone(): Unit = lastPlan = lonePlan

  private def lonePlan: LastPlan = {
    val used = if (policy.needsProfile && !isMeasured) Policy.Whole else policy
    val known = profile
    LastPlan(used, Planner.plan(known, used), if (isMeasured) Some(known) else None)
  }

  /**
   * Use a plan of both directions.
   *
   * @param used the policy that made the plan
   * @param iterationSeconds prediction with `plan` and the plan of the other direction
   */
  def use(used: Policy, plan: Plan, from: Profile, iterationSeconds: Double): Unit =
    lastPlan = LastPlan(used, plan, Some(from), Some(iterationSeconds))

  /** Description of the batches in use, as "plan, 7 pulls" or "layerwise". */
  def description: String = {
    val count = batches.size
    val oneEach = if (count == traffic.layers && count > 1) ", one per layer" else ""
    if (lastPlan.policy.isPlanned) s"plan, ${direction.count(count)}$oneEach"
    else lastPlan.policy.name
  }

  /** Write the batches in use to `reply`: see [[AdaptiveBuckets.report]]. */
  def report(reply: ObjectNode): ObjectNode = {
    reply.put("policy", lastPlan.policy.name)
    reply.put("kept", description)
    val pairs = reply.putArray("batches")
    batches.foreach(batch => pairs.addArray().add(batch.first).add(batch.last))
    lastPlan.profile.foreach { profile =>
      reply.put("predicted_seconds", lastPlan.plan.seconds)
      reply.put("optimal_ratio", Planner.ratioToOptimal(profile, lastPlan.plan))
      lastPlan.iterationSeconds.foreach(reply.put("predicted_iteration_seconds", _))
      PlanRequest.write(profile, reply.putObject("profile"))
    }
    reply.put("asked", policy.name)
  }
}

private[ibatch] object DirectionBatches {

  /**
   * Last plan of this direction.
   *
   * @param policy that made the plan
   * @param profile behind the plan, if there was one
   */
  private final case class LastPlan(
      policy: Policy,
      plan: Plan,
      profile: Option[Profile],
      iterationSeconds: Option[Double] = None
  )
}
