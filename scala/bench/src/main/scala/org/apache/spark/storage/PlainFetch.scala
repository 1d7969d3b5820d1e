// SPDX-License-Identifier: Apache-2.0

package org.apache.spark.storage

import java.nio.ByteBuffer

import org.apache.spark.SparkEnv

/** Address where Spark serves the blocks of an executor. */
final case class PlainServer(host: String, port: Int, executorId: String)

/** Fetch of a whole block into one buffer, as Spark fetches broadcasts: the rival in FetchBench. */
object PlainFetch {
  private def manager = SparkEnv.get.blockManager

  /** Address of this executor. */
  def address: PlainServer = {
    val id = manager.blockManagerId
    PlainServer(id.host, id.port, id.executorId)
  }

  def apply(from: PlainServer, job: Long, name: String): ByteBuffer = {
    val id = BroadcastBlockId(job, name).name
    manager.blockTransferService
      .fetchBlockSync(from.host, from.port, from.executorId, id, null)
      .nioByteBuffer
  }
}
