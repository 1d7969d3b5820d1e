package sparkdl.comm.ibatch

/**
 * What is set about batches, alike for all ranks of a fit.
 *
 * @param pull how parameters are cut; `push`: gradients
 * @param profileIterations steps that are measured before a plan
 * @param replanDrift by how much, relatively, a profile has to change for another plan
 */
private[comm] final case class BatchingSettings(
    pull: Policy,
    push: Policy,
    profileIterations: Int,
    replanDrift: Double
) {
  private def policies = Seq(pull, push)

  /** Whether both directions may be on their way at the same time. */
  def overlap: Boolean = !policies.contains(Policy.Whole)

  /** A batch of parameters is asked for when the one before is here. */
  def inTurn: Boolean = pull.inTurn

  def needsProfile: Boolean = policies.exists(_.needsProfile)

  /** How many steps measurements are over; None if no policy needs any. */
  def measuredSteps: Option[Int] = if (needsProfile) Some(profileIterations) else None
}

private[comm] object BatchingSettings {

  /**
   * As spark.sparkdl.comm.ps.batching and its kin have them.
   *
   * @param pushBatching empty: as `batching`, and with the paper's all at once
   * @throws IllegalArgumentException if there is no such policy
   */
  def apply(batching: String, pushBatching: String, profileIterations: Int, replanDrift: Double): BatchingSettings = {
    val pull = Policy(batching)
    val usual = if (pull.inTurn) Policy.Whole else pull
    val push = if (pushBatching.isEmpty) usual else Policy(pushBatching)
    BatchingSettings(pull, push, profileIterations, replanDrift)
  }
}
