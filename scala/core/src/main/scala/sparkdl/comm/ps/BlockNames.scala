package sparkdl.comm.ps

/** Names of blocks, made of shard, bucket and version. The block bridge adds the job. */
private[ps] object BlockNames {
  def parameters(server: Int, bucket: Int, version: Long): String = s"sparkdl_p_${server}_${bucket}_$version"

  def gradients(worker: Int, server: Int, bucket: Int, version: Long): String =
    s"sparkdl_g_${worker}_${server}_${bucket}_$version"
}
