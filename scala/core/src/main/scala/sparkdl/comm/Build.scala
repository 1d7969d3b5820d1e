// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm

import java.net.URL
import java.nio.file.{Files, Path}
import java.security.MessageDigest
import java.util.Properties

/**
 * Build of the plugin that runs in this JVM. Executors compare their builds before they
 * communicate. Each jar defines its own formats of messages and blocks, and different versions need
 * not be compatible.
 */
private[comm] object Build {

  /** Version, and the beginning of the jar's SHA-256. */
  lazy val id: String = describe(getClass.getProtectionDomain.getCodeSource.getLocation)

  /**
   * Check that all executors run this build.
   *
   * @param builds of the executors, by rank
   * @param rank of this executor
   * @throws CommException if an executor runs another build
   */
  def checkSame(builds: Seq[String], rank: Int): Unit =
    builds.zipWithIndex.foreach { case (build, other) =>
      if (build != id)
        throw new CommException(
          CommException.Plugin,
          s"the executor of rank $other runs sparkdl-comm $build, and that of rank $rank $id: all" +
            " need the same jar (spark.jars, or what lies on spark.executor.extraClassPath)",
          other
        )
    }

  private[comm] def describe(code: URL): String = {
    val jar = Path.of(code.toURI)
    if (Files.isRegularFile(jar)) s"$version (jar ${digest(Files.readAllBytes(jar))})"
    else s"$version (classes)"
  }

  private def version: String = {
    val build = new Properties
    val in = getClass.getResourceAsStream("/sparkdl/comm/build.properties")
    try build.load(in)
    finally in.close()
    build.getProperty("version")
  }

  private def digest(bytes: Array[Byte]): String =
    MessageDigest
      .getInstance("SHA-256")
      .digest(bytes)
      .take(6)
      .map(byte => f"${byte & 0xff}%02x")
      .mkString
}
