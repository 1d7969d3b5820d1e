// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.ibatch

/**
 * Settings of batches, equal on all ranks of a fit.
 *
 * @param pull policy for parameters
 * @param push policy for gradients
 * @param profileIterations steps that are measured before a plan
 * @param replanDrift relative change of a profile that causes another plan
 */
private[comm] final case class BatchingSettings(
    pull: Policy,
    push: Policy,
    profileIterations: Int,
    replanDrift: Double
) {
  private def policies = Seq(pull, push)

  /** True if both directions may transfer at the same time. */
  def canOverlap: Boolean = !policies.contains(Policy.Whole)

  /** True if a batch of parameters is requested only after the one before has arrived. */
  def isSequential: Boolean = pull.isSequential

  /** True if one plan is made for both directions. */
  def isPlanned: Boolean = policies.forall(_ == Policy.IBatch)

  def needsProfile: Boolean = policies.exists(_.needsProfile)

  /** Steps of a measurement; None if no policy needs one. */
  def measuredSteps: Option[Int] = if (needsProfile) Some(profileIterations) else None
}

private[comm] object BatchingSettings {

  /**
   * Parse spark.sparkdl.comm.ps.batching and the keys that belong to it.
   *
   * @param pushBatching if empty: the same as `batching`, or `whole` with a policy of the paper
   * @throws IllegalArgumentException if a policy does not exist
   */
  def apply(
      batching: String,
      pushBatching: String,
      profileIterations: Int,
      replanDrift: Double
  ): BatchingSettings = {
    val pull = Policy(batching)
    val usual = if (pull.isSequential) Policy.Whole else pull
    val push = if (pushBatching.isEmpty) usual else Policy(pushBatching)
    BatchingSettings(pull, push, profileIterations, replanDrift)
  }
}

/**
 * Data that the ranks of a fit exchange in an iteration.
 *
 * @param world number of ranks
 * @param pull bytes of each layer's parameters on the network.
 * @param push approximate bytes of each layer's gradients on the network
 * @param noticeBytes largest batch, in bytes, that travels inside its notices
 * @param pullsAhead parameters are pulled while gradients are still pushed
 */
private[comm] final case class Traffic(
    world: Int,
    pull: IndexedSeq[Long],
    push: IndexedSeq[Long],
    noticeBytes: Long,
    pullsAhead: Boolean
) {
  require(
    pull.size == push.size,
    s"${pull.size} layers are pulled, but ${push.size} are pushed: the numbers must be equal"
  )

  def layers: Int = pull.size
}
